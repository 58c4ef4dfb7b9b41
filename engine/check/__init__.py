"""What can be known about a flow before it runs."""

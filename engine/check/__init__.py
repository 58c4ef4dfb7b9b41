"""Static checks of a flow before it runs."""

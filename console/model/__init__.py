"""What is shown, as values: events in, deltas out. Knows no screen."""

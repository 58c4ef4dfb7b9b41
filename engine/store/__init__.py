"""What remembers: the only place that says SQLite."""

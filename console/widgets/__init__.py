"""What draws: by line, only what changed. Knows no engine."""

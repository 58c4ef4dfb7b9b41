"""Single values as text: durations, signs, sanitised text, events as sentences."""

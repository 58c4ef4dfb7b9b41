"""How single values read: durations, signs, sanitised text, events as sentences."""

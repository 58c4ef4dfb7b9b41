"""Data for screens and commands: the live run, its history, causes, rule trials and what-if replays."""

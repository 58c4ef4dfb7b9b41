"""What each command of the shell does; ``cli.py`` reads the words and calls here.."""

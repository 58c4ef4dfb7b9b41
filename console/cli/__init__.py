"""What each command of the shell does; ``main.py`` reads the words and calls here.."""

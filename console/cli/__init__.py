"""The command line: ``main.py`` declares all commands; the other modules of this folder do their work."""

"""The command line: ``group.py`` lists all commands, and the module of each in this folder does its work."""

"""The actions of the console with their keys, help and command lines, and the guard against unintended keys."""

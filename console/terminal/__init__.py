"""The one door to the terminal: how it is taken and given back, what it can do, keys in, cells out."""

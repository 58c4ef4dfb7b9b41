"""What an operator can do: each action once, with its keys, its help and its command line."""

"""The log of an attempt: its screen, what is read of it, and what searches it."""

"""Hang autopsy: stacks, sockets, children and coroutines of an attempt, read just before it is ended."""

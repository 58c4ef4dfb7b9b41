"""Why an attempt hangs: stacks, sockets, children and coroutines, read just before it is ended."""

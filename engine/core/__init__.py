"""What decides: values in, values out; no clock, disk, loop, thread or dice of its own."""

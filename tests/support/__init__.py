"""Parts that several tests need: commands, state files, hosts, processes, and waiting for a condition."""

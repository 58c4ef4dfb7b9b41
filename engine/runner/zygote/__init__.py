"""The process that imports the flow once and forks one process per attempt."""

"""The agent that ssh carries to another host, and the client that sends commands to an executor. Runs on Python 3.6."""

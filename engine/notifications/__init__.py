"""Sends pages beside the loop: a command, a webhook, a notification library, the terminal's bell."""

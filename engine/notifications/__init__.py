"""Sends pages in the background: by command, webhook, notification library or terminal bell."""

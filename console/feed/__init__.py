"""Asks a session and prepares what the screens show. Imports no Textual."""

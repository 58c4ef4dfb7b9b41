"""Wires the session, the model and the screens into one application."""

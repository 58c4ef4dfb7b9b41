"""The models of the screens, as values: events in, deltas out. Imports no screen, session or event loop."""

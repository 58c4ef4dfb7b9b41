"""The views: what a model knows, in widgets, with the keys of each."""

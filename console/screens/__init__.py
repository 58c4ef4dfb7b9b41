"""The screens: models rendered in widgets, with their key bindings."""

"""Terminal access: raw mode and restore, capabilities, key input, cell output."""

"""How output looks in a terminal. Imported when a command prints."""

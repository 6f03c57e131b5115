"""Read-only statements for pages, commands, metrics and the doctor."""

"""Questions to the database that change nothing, for pages, commands, metrics and the doctor."""

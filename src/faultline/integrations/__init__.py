"""Other people's systems. Nothing below the commands and the web imports from here."""

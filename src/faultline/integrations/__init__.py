"""Integrations with other systems. Only the commands and the web import from here."""

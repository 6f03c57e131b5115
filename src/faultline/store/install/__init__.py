"""Bring the schema into a database, and judge what is installed there."""

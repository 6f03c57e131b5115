"""Failure stories that anyone can run, against a real PostgreSQL."""

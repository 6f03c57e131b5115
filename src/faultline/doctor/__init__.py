"""Examine a database: checks, what they ask, and findings with what to do."""

"""Nouns and rules. No third-party imports, no I/O."""

"""Claim jobs of a queue: when, how many, and in which order they run."""

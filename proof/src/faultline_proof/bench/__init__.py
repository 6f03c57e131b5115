"""Figures of this machine, measured and never guessed."""

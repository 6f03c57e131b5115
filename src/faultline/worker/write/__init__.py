"""How jobs ended, and that they started: written in batches."""

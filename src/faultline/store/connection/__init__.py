"""One connection: where it leads, what its session has set, and whether it can be used."""

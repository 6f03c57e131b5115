"""A shop that ships what is ordered."""

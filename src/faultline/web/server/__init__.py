"""One server: its databases, limits and state, and what applies to every request."""

"""The HTTP API, for programs: its routes, and the shapes of what they take and return."""

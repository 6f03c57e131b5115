"""Generated: the blocking side of the flow engine."""

"""What the parts of a worker share: its databases, its counters, its background tasks, threads, and its end."""

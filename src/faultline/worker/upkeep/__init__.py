"""What workers do for all jobs: reap, resolve, schedule, prune, and say what this worker's code declares."""

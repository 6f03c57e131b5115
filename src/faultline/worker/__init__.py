"""What runs jobs: it claims, runs, renews, completes, gives back and looks after the jobs of the dead."""

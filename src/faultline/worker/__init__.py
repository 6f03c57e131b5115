"""The worker: claims jobs, runs them, renews their leases, writes how they ended, and reaps expired leases."""

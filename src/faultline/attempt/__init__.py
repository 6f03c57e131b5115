"""The running attempt of a job: its lease, its transaction, what it may return, and how it is to run."""

"""The leases that a worker holds: kept alive by a heartbeat, let go in time."""

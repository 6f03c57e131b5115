"""A small process beside a worker, which keeps its leases while the worker cannot, and watches over it."""

"""Flows: programs that remember their calls, wait without a lease, and go on. The job and the worker use what is here."""

"""Faultline's flows beside those of its peers: `python -m bench.flows`, then `python -m bench.report`."""

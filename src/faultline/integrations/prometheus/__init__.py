"""Metrics for Prometheus. Importing this imports `prometheus_client`; nothing else in Faultline does.

Their names show two kinds. Metrics of one process (`faultline_jobs_…`, `faultline_leases_…`) may be summed over all targets.
Metrics of the whole database (`faultline_queue_…`) are the same on every target: take the maximum, never the sum.
"""

from faultline.integrations.prometheus.board import Board
from faultline.integrations.prometheus.exposition import CONTENT_TYPE, Exposition
from faultline.integrations.prometheus.serving import Reports, report_to, serve

__all__ = ["CONTENT_TYPE", "Board", "Exposition", "Reports", "report_to", "serve"]

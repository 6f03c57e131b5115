"""The dashboard: one module a page. Pages read; what they change, they change through the same service as the API."""

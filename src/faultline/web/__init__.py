"""The HTTP API and the dashboard: what people and programs outside see of the queues."""

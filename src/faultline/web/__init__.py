"""The HTTP service: the API and the dashboard. It can do only what its database roles may do."""

"""The HTTP service: the API and the dashboard. It can do nothing that its roles in the database may not."""

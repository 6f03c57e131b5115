"""Processes of tasks that compute."""

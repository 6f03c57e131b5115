"""Schedules and their ticks."""

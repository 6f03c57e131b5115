"""Explain what happened, as text and SVG: attempts over time, flows, schedules, and why a job does not run."""

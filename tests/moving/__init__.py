"""Tests of the pages on moving from another system."""

"""The page on moving from Celery: each of its programs is run, and does what the page says."""

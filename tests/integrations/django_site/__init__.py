"""A Django project for tests: its suites are run by Django's own test runner, on each version of Django that is here."""

"""`manage.py faultline_worker`: run Django's tasks."""

from __future__ import annotations

from faultline.integrations.django.commanding import Passing


class Command(Passing):
    help = "Run tasks until SIGTERM or Ctrl-C. Takes the options of `faultline worker`, such as --queue mail=20."
    first = ("worker", "faultline.integrations.django.worker:app")

"""`manage.py faultline …`: any command of Faultline, on the database of Django."""

from __future__ import annotations

from faultline.integrations.django.commanding import Passing


class Command(Passing):
    help = "Any command of Faultline on the database of Django: `faultline doctor`, `faultline jobs`, `faultline serve`."
    requires_system_checks = ()

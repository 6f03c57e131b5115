"""What `manage.py faultline_worker` runs: `faultline worker faultline.integrations.django.worker:app`."""

from __future__ import annotations

import os

import django
from django.db import DEFAULT_DB_ALIAS
from django.utils.module_loading import autodiscover_modules

django.setup()

from faultline.integrations.django.applications import application  # noqa: E402 - once applications are ready
from faultline.integrations.django.commanding import DATABASE  # noqa: E402

# Importing a module later, when its first job comes, would hold up all others.
autodiscover_modules("tasks")

app = application(os.environ.get(DATABASE, DEFAULT_DB_ALIAS))

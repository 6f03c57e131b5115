"""The settings of the project. What Faultline needs stands at the end."""

import os
from importlib.util import find_spec

from psycopg.conninfo import conninfo_to_dict

_database = conninfo_to_dict(os.environ["FAULTLINE_DSN"])

SECRET_KEY = os.environ.get("SECRET_KEY", "not a secret: this is an example")
DEBUG = True
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "shop.urls"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database["dbname"],
        "USER": _database.get("user", ""),
        "PASSWORD": _database.get("password", ""),
        "HOST": _database.get("host", ""),
        "PORT": str(_database.get("port", "")),
    }
}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "faultline.integrations.django",
    "shop",
]
if find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")  # Django 5.2
TASKS = {
    "default": {
        "BACKEND": "faultline.integrations.django.FaultlineBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_attempts": 5},
    }
}

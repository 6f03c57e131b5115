"""The project's settings. The database is that of FAULTLINE_DSN; Django's test runner makes another one beside it."""

from __future__ import annotations

import os

from psycopg.conninfo import conninfo_to_dict

_dsn = conninfo_to_dict(os.environ["FAULTLINE_DSN"])

SECRET_KEY = "tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.integrations.django_site.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *([] if os.environ.get("DJANGO_TASKS") == "builtin" else ["django_tasks"]),
    "faultline.integrations.django",
    "tests.integrations.django_site",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _dsn["dbname"],
        "USER": _dsn.get("user", ""),
        "PASSWORD": _dsn.get("password", ""),
        "HOST": _dsn.get("host", ""),
        "PORT": str(_dsn.get("port", "")),
        "CONN_MAX_AGE": int(os.environ.get("CONN_MAX_AGE", "0")),
        "TEST": {"MIGRATE": False},
    },
    "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
TASKS = {
    "default": {"BACKEND": "faultline.integrations.django.FaultlineBackend", "QUEUES": ["default", "mail"]},
    "once": {
        "BACKEND": "faultline.integrations.django.FaultlineBackend",
        "OPTIONS": {"max_attempts": 1, "timeout": 30},
    },
}

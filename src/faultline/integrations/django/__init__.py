"""Django's tasks on Faultline: a backend for `django.tasks` (Django 6.0 and later) and for django-tasks (Django 5.2).

    INSTALLED_APPS = [..., "faultline.integrations.django"]
    TASKS = {"default": {"BACKEND": "faultline.integrations.django.FaultlineBackend"}}

A task is enqueued in Django's own transaction: it exists once that commits, and not at all if it is rolled back.
`manage.py migrate` installs the schema, `manage.py faultline_worker` runs the tasks.
"""

from importlib import import_module

# For type checkers, which know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from faultline.integrations.django.applications import application as application
    from faultline.integrations.django.backend import FaultlineBackend as FaultlineBackend
    from faultline.integrations.django.fencing import atomic as atomic

_MODULE_OF = {"FaultlineBackend": "backend", "application": "applications", "atomic": "fencing"}

__all__ = ["FaultlineBackend", "application", "atomic"]


def __getattr__(name: str) -> object:
    """Import on first use: Django imports this package before its applications are ready."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)

"""Faultline as an application of Django: `manage.py migrate` brings its schema, also into the test runner's database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from django.apps import AppConfig
from django.core import checks
from django.core.management.base import CommandError
from django.db import connections
from django.db.models.signals import post_migrate

from faultline.core.errors import FaultlineError
from faultline.worker.base.threads import at_thread_end

if TYPE_CHECKING:
    from collections.abc import Callable


class FaultlineConfig(AppConfig):
    name = "faultline.integrations.django"
    label = "faultline"
    verbose_name = "Faultline"

    def ready(self) -> None:
        post_migrate.connect(_migrate, sender=self)
        checks.register(_check_schema, checks.Tags.database)
        # Django would leave them open until they are collected, and a test runner could not drop its database.
        if connections.close_all not in at_thread_end:
            at_thread_end.append(connections.close_all)


def _migrate(*, using: str, verbosity: int, plan: list[Any] | None = None, **_: Any) -> None:
    """After Django's own migrations of a database that a backend of ours uses."""
    if plan is None:
        return  # of `flush`, which the test runner calls after many a test
    from faultline.integrations.django.applications import application, backends  # noqa: PLC0415 - once apps are ready

    if any(backends(using)):
        try:
            migrated = migrate(using)
        except FaultlineError as error:
            raise CommandError(f"Faultline's schema was not migrated: {error}") from error
        _before_dropping(connections[using].creation, application(using).close)
        if verbosity >= 1:
            print(f"  Faultline: {'migrated' if migrated else 'up to date'}")  # noqa: T201 - as Django does


def _before_dropping(creation: Any, close: Callable[[], None]) -> None:
    """Our connections would keep the test runner from dropping its database. Django has no signal for it."""
    drop = creation._destroy_test_db  # noqa: SLF001
    if drop.__name__ == "destroy":
        return  # by an earlier `migrate`

    def destroy(*args: Any, **kwargs: Any) -> None:
        close()
        drop(*args, **kwargs)

    creation._destroy_test_db = destroy  # noqa: SLF001


def migrate(using: str) -> list[str]:
    """Install or upgrade the schema in the database of this alias. Returns the names of what was applied."""
    from faultline.integrations.django.applications import dsn_of  # noqa: PLC0415
    from faultline.store.install import migrate as schema  # noqa: PLC0415

    # A connection of its own: it needs transactions that Django's may not have.
    with psycopg.connect(dsn_of(using), autocommit=True) as connection:
        return schema.migrate(connection)


def _check_schema(databases: list[str] | None = None, **_: Any) -> list[Any]:
    """`manage.py check --database default`: whether the schema is there, and of this build."""
    from faultline.integrations.django.applications import application, backends  # noqa: PLC0415

    found = []
    for alias in sorted({one.faultline_database for one in backends()} & set(databases or ())):
        try:
            application(alias).database.facts()
        except FaultlineError as error:
            hint = "Run: manage.py faultline_migrate"
            found.append(checks.Warning(f"Faultline cannot use the database {alias!r}: {error}", hint, id="faultline.W001"))
    return found

"""`manage.py faultline_migrate`: install or upgrade the schema. `manage.py migrate` does so as well."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from faultline.core.errors import FaultlineError
from faultline.integrations.django.apps import migrate


class Command(BaseCommand):
    help = "Install or upgrade Faultline's schema. Running programs of the previous build go on working."
    requires_system_checks = ()

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="An alias of DATABASES. Default: default.")

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            applied = migrate(options["database"])
        except FaultlineError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"applied: {', '.join(applied) or 'nothing, it is up to date'}")

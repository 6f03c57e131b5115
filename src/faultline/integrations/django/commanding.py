"""Run the command `faultline` for a database of Django. It replaces this process, so signals and exit codes are its own."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from faultline.core.errors import FaultlineError
from faultline.integrations.django.applications import dsn_of

#: The alias of the database, for the worker's process.
DATABASE = "FAULTLINE_DJANGO_DATABASE"


class Passing(BaseCommand):
    """A command of `manage.py` that passes its words on: all that Django itself does not take."""

    #: The first words of the command.
    first: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def create_parser(self, *args: Any, **kwargs: Any) -> Any:
        parser = super().create_parser(*args, **kwargs)
        parser.allow_abbrev = False
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="An alias of DATABASES. Default: default.")

        def parse(args: Any = None, namespace: Any = None) -> Any:
            known, left = parser.parse_known_args(args, namespace)
            self.words = tuple(left)
            return known

        parser.parse_args = parse
        return parser

    def handle(self, *_: Any, **options: Any) -> None:
        using = options["database"]
        if using not in connections:
            raise CommandError(f"DATABASES has no {using!r}; it has {', '.join(connections)}")
        try:
            dsn = dsn_of(using)
        except FaultlineError as error:
            raise CommandError(str(error)) from error
        become([*self.first, *self.words], using, dsn)


def become(words: list[str], using: str, dsn: str) -> NoReturn:
    """Become `faultline WORDS`."""
    if importlib.util.find_spec("typer") is None:
        raise CommandError("this command needs typer and rich; run: pip install 'faultline-queue[django]'")
    # In the environment, which other users of the machine cannot read: it may hold a password.
    path = os.pathsep.join(filter(None, (sys.path[0] or str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, "FAULTLINE_DSN": dsn, DATABASE: using, "PYTHONPATH": path}
    os.execve(sys.executable, [sys.executable, "-m", "faultline", *words], environment)  # noqa: S606 - our own command

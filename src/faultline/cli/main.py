"""`faultline`: the commands and how their errors are shown. An error is a sentence, not a traceback."""

from __future__ import annotations

import sys

import typer

from faultline.cli import database, keys, proof, serve, work
from faultline.core.errors import FaultlineError

app = typer.Typer(
    name="faultline",
    help="Background jobs on PostgreSQL that stay right when things go wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(work.worker)
app.command()(serve.serve)
app.add_typer(keys.keys, name="api-keys")
app.command()(database.migrate)
app.command()(database.doctor)
app.command()(database.recover)
app.add_typer(database.db, name="db")
app.command()(proof.demo)
app.command()(proof.drill)
app.command()(proof.explore)
app.command()(proof.simulate)
app.command()(proof.soak)
app.command()(proof.prove)
app.command()(proof.bench)


def main() -> None:
    try:
        app()
    except FaultlineError as error:
        sys.exit(f"faultline: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

"""Commands for the database: migrate it, recover it, run a private one."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.core.bounds import TOKEN_FLOOR_MAX
from faultline.core.errors import ConfigError
from faultline.core.settings import choose_dsn, choose_timeout, without_password

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.embedded import Status
    from faultline.store.database import Database

Dsn = Annotated[
    str | None, typer.Option("--dsn", metavar="DSN", help="The database. Default: FAULTLINE_DSN, else DATABASE_URL.")
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help="The folder of the private PostgreSQL. Default: that of FAULTLINE_DSN=embedded:FOLDER, else .faultline",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

db = typer.Typer(
    help="Run a private PostgreSQL in a folder.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


def migrate(
    dsn: Dsn = None,
    wait: Annotated[
        float, typer.Option(min=0, max=86_400, metavar="SECONDS", help="How many seconds to wait for the locks it needs.")
    ] = 60.0,
) -> None:
    """Migrate the database to this build's schema. Safe to run twice, from several machines, and while workers run.

    Workers and clients of the previous build keep working. A database that a newer build has migrated is left unchanged.
    """
    from faultline.store.database import Database, run_on  # noqa: PLC0415 - late, so that --help is quick
    from faultline.store.install import constraints  # noqa: PLC0415
    from faultline.store.install import migrate as store_migrate  # noqa: PLC0415
    from faultline.store.translation import translated  # noqa: PLC0415

    with resolved(dsn) as found, Database(found).connect() as connection, translated(found):
        applied = store_migrate.migrate(connection, wait_seconds=wait)
        database, ours = store_migrate.version_of(connection), store_migrate.protocol()
        lacks = run_on(connection, constraints.lacks()) if database == ours else []
    summary = f"migrated to protocol {ours.version}" if applied else "up to date"
    if database is not None and database.version > ours.version:
        summary = f"the database is newer (protocol {database.version}) than this build ({ours.version}); nothing to do"
    print(f"{without_password(found)}: {summary}")
    for lack in lacks:
        print(f"not repaired: {lack.what}; run as the owner, when the load is low: {lack.cure}", file=sys.stderr)


def recover(
    dsn: Dsn = None,
    floor: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=TOKEN_FLOOR_MAX,
            metavar="NUMBER",
            help="New tokens are greater than this. Default: the time in microseconds.",
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, max=86_400, metavar="SECONDS", help="How many seconds to wait for the lock it needs.")
    ] = 60.0,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Recorded in the journal, with who did it.")] = None,
) -> None:
    """After a failover that lost commits, or a restored backup: void every lease and raise the floor of new tokens."""
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick
    from faultline.store.database import Database  # noqa: PLC0415
    from faultline.store.install import migrate as store_migrate  # noqa: PLC0415
    from faultline.store.translation import translated  # noqa: PLC0415

    operate.check_reason(reason)
    by = operate.this_user()
    with resolved(dsn) as found, Database(found).connect() as connection, translated(found):
        Database(found).facts()  # refuses a database of another version
        lifted_to, _, requeued = store_migrate.recover(connection, floor, by=by, reason=reason, wait_seconds=wait)
    print(f"new tokens are above {lifted_to}; running jobs requeued: {requeued}")


@db.command()
def start(folder: Folder = None) -> None:
    """Start the server. It runs until `faultline db stop`."""
    from faultline import embedded  # noqa: PLC0415

    print(_described(embedded.start(_folder(folder))))
    if folder is None and (named := _named()) and not embedded.is_embedded(named):
        note = f"other commands use {without_password(named)}; to use this server: export FAULTLINE_DSN=embedded:"
        print(f"faultline: {note}", file=sys.stderr)


@db.command()
def stop(folder: Folder = None) -> None:
    """Stop the server now, even if programs use it."""
    from faultline import embedded  # noqa: PLC0415

    print("stopped" if embedded.stop(_folder(folder)) else "was not running")


@db.command()
def status(folder: Folder = None, as_json: AsJson = False) -> None:  # noqa: FBT002 - a command's flag
    """Show whether the server is running, where its data is and how to connect."""
    from faultline import embedded  # noqa: PLC0415

    found = embedded.status(_folder(folder))
    print(json.dumps(asdict(found), default=str) if as_json else _described(found))
    if not found.running:
        raise typer.Exit(3)


@db.command()
def destroy(folder: Folder = None) -> None:
    """Stop the server and delete its data."""
    from faultline import embedded  # noqa: PLC0415

    found = _folder(folder)
    embedded.destroy(found)
    print(f"{found} removed")


@contextlib.contextmanager
def resolved(dsn: str | None) -> Iterator[str]:
    """The DSN to connect to. An embedded server is joined for as long as the command runs."""
    from faultline import embedded  # noqa: PLC0415

    named = choose_dsn(dsn)
    if embedded.is_embedded(named):
        with embedded.join(embedded.folder_of(named)) as server:
            yield server.dsn
    else:
        yield named


@contextlib.contextmanager
def opened(dsn: str | None, *, connect_seconds: float | None = None) -> Iterator[Database]:
    """The database to query, for as long as the command runs. Its calls have the same deadline as a program's.

    `connect_seconds`: how long to wait for an unreachable server.
    """
    from faultline.store.connection.connecting import CONNECT_SECONDS  # noqa: PLC0415
    from faultline.store.database import Database  # noqa: PLC0415

    patience = CONNECT_SECONDS if connect_seconds is None else connect_seconds
    with (
        resolved(dsn) as found,
        contextlib.closing(Database(found, timeout=choose_timeout(), connect_seconds=patience)) as database,
    ):
        yield database


def print_json(value: object) -> None:
    """One JSON text a line, for programs."""
    print(json.dumps(value, default=_as_text, ensure_ascii=False))


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _folder(folder: Path | None) -> Path:
    """The folder that was given, else that of the embedded server that other commands would use."""
    from faultline import embedded  # noqa: PLC0415

    if folder is not None:
        return folder
    named = _named()
    return embedded.folder_of(named) if named and embedded.is_embedded(named) else embedded.DEFAULT_FOLDER


def _named() -> str | None:
    """The database of the environment, if it names one."""
    try:
        return choose_dsn()
    except ConfigError:
        return None


#: Facts whose names in the JSON say too little to people.
_LABELS = {"users": "programs connected", "kept": "runs until db stop"}


def _described(status: Status) -> str:
    facts = {_LABELS.get(name, name): value for name, value in asdict(status).items() if value is not None}
    return "\n".join(f"{label:18} {value}" for label, value in facts.items())

"""Commands for queues and workers: their state, pausing and resuming a queue."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli.commands.database import AsJson, Dsn, opened, print_json
from faultline.core.errors import PermissionDenied

if TYPE_CHECKING:
    from faultline.store.database import Database
    from faultline.store.reads.overview import QueueLine

queues = typer.Typer(rich_markup_mode=None, add_completion=False)
#: Heartbeats of a busy machine are sometimes late; restarting its workers would make it busier.
_HERE_SECONDS = 15.0
_Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Shown wherever the queue is shown.")]
_QueueName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the queue.")]


@queues.callback(invoke_without_command=True)
def listed(ctx: typer.Context, dsn: Dsn = None, as_json: AsJson = False) -> None:  # noqa: FBT002 - a command's flag
    """Show the queues, or pause and resume one.

    \b
    Examples:
      faultline queues
      faultline queues --json | jq -r 'select(.due > 1000) | .name'
      faultline queues pause mail --reason "the mail server is down"
      faultline queues resume mail
    """
    if ctx.invoked_subcommand is not None:
        return
    from faultline.store.reads import overview  # noqa: PLC0415 - late, so that --help is quick

    with opened(dsn) as database:
        lines = counted(database)
        serving = database.run(overview.workers())
    if as_json:
        for line in lines:
            print_json(asdict(line))
        return
    from faultline.cli.printing import screen, tables  # noqa: PLC0415

    console = screen.console()
    if lines:
        screen.show(console, tables.queue_table(lines, serving))
    else:
        console.print("No queues: none has had jobs in the last day.", style="quiet")


@queues.command()
def pause(
    name: _QueueName,
    reason: _Why = None,
    dsn: Dsn = None,
) -> None:
    """Pause a queue: workers stop claiming from it. Running jobs finish; new jobs wait.

    \b
    Example:
      faultline queues pause mail --reason "the mail server is down"
    """
    from faultline import operate  # noqa: PLC0415
    from faultline.cli.commands.limits import note_unserved  # noqa: PLC0415

    with opened(dsn) as database:
        since = database.run(operate.pause(name, reason=reason, by=operate.this_user()))
        print(f"{name} paused since {since.astimezone():%Y-%m-%d %H:%M:%S}; running jobs finish, new jobs wait")
        note_unserved(database, name)


@queues.command()
def resume(
    name: _QueueName,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Recorded in the journal, with who did it.")] = None,
    dsn: Dsn = None,
) -> None:
    """Resume a queue: workers claim from it again.

    \b
    Example:
      faultline queues resume mail
    """
    from faultline import operate  # noqa: PLC0415

    with opened(dsn) as database:
        was_paused = database.run(operate.resume(name, reason=reason, by=operate.this_user()))
    print(f"{name} resumed" if was_paused else f"{name} was not paused")


def workers(
    dsn: Dsn = None,
    here: Annotated[bool, typer.Option("--here", help="Only this machine's; exit code 1 if none is alive.")] = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Show the workers: host, queues, leases and last heartbeat.

    \b
    Examples:
      faultline workers
      faultline workers --here
    """
    from faultline.store.reads import overview  # noqa: PLC0415

    with opened(dsn) as database:
        lines = database.run(overview.workers())
    if here:
        lines = [line for line in lines if line.host == socket.gethostname()]
    if as_json:
        for line in lines:
            print_json(asdict(line))
    else:
        from faultline.cli.printing import screen, tables  # noqa: PLC0415

        console = screen.console()
        if lines:
            screen.show(console, tables.worker_table(lines))
        else:
            console.print("No workers are running.", style="quiet")
    if here and not any(line.age_seconds < _HERE_SECONDS for line in lines):
        raise typer.Exit(1)


def counted(database: Database) -> list[QueueLine]:
    """The queues, counted again if a count is due and this login has the right."""
    from faultline.store import verbs  # noqa: PLC0415
    from faultline.store.reads import overview  # noqa: PLC0415 - late, so that --help is quick

    with contextlib.suppress(PermissionDenied):
        # As a read: a lost count needs no warning.
        database.run(replace(verbs.sample(), reads=True))
    return database.run(overview.queues())

"""Commands about jobs: make one, look at them, stop them, give them another chance."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli import values
from faultline.cli.database import AsJson, Dsn, opened, print_json
from faultline.core.config import choose_dsn
from faultline.core.errors import FaultlineError, JobNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from faultline.core.model import JobState
    from faultline.store.queue import Statement

JobIds = Annotated[list[str], typer.Argument(metavar="ID...", help="One or more jobs.")]


def enqueue(
    task: Annotated[str, typer.Argument(help="The task's name, as its worker knows it.")],
    args: Annotated[str, typer.Argument(help="Its arguments, a JSON object; - reads them from standard input.")] = "{}",
    queue: Annotated[str | None, typer.Option(help="Default: the queue named default.")] = None,
    delay: Annotated[str | None, typer.Option(metavar="SPAN", help="Not before: 90s, 5m, 1h30m, 2d.")] = None,
    priority: Annotated[int | None, typer.Option(min=-1000, max=1000, help="Smaller goes first. Default: 0.")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same one makes no second job.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, max=1000, help="Default: 5.")] = None,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002 - a command's flag
) -> None:
    """Make a job and print its id.

    The command does not know your tasks: what is unset here has the database's default, not the task's.

    \b
    Examples:
      faultline enqueue charge '{"order_id": 42}'
      faultline enqueue report '{"day": "2026-01-31"}' --queue slow --delay 1h30m
      faultline enqueue charge '{"order_id": 42}' --key order:42
    """
    from faultline.core.model import Submission  # noqa: PLC0415 - late, so that --help is quick
    from faultline.runtime.client import Faultline  # noqa: PLC0415

    submission = Submission(
        task=task,
        args=values.arguments(args),
        queue=queue,
        priority=priority,
        delay_seconds=None if delay is None else values.seconds(delay),
        max_attempts=max_attempts,
        idempotency_key=key,
    )
    with Faultline(choose_dsn(dsn)) as app:
        made = app.enqueue_many([submission])[0]
    if as_json:
        print_json({"id": made.id, "created": made.created})
        return
    print(made.id)
    if not made.created:
        print(f"the key {key} named this job already; nothing new was made", file=sys.stderr)


def job(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Which job.")],
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Show one job: who held it under which token, how that ended, and which writes were refused.

    \b
    Examples:
      faultline job 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01
      faultline job 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01 --json | jq .epochs
    """
    from faultline.core.epochs import epochs  # noqa: PLC0415
    from faultline.store import views  # noqa: PLC0415

    wanted = values.job_id(job_id)
    with opened(dsn) as database:
        record = database.run(views.job(wanted))
        if record is None:
            raise JobNotFound(f"there is no job {wanted}. It was never enqueued here, or it was pruned")
        journal = database.run(views.journal(wanted))
        in_ledger = database.run(views.ledger_rows(wanted))
        now = database.run(views.clock())
    lives = epochs(record, journal)
    if as_json:
        print_json(
            {
                **asdict(record),
                "ledger_rows": in_ledger,
                "epochs": [asdict(epoch) for epoch in lives],
                "journal": [asdict(entry) for entry in journal],
            }
        )
        return
    from faultline.cli import lanes, screen  # noqa: PLC0415

    console = screen.console()
    lanes.print_record(console, record, now=now, in_ledger=in_ledger)
    console.print()
    if lives:
        for line in lanes.lanes(lives, now=now, columns=console.width):
            console.print(line, soft_wrap=True)
    else:
        console.print("Nobody has held it yet.", style="quiet")
    lanes.print_values(console, record)


def cancel(
    job_ids: JobIds,
    because: Annotated[str | None, typer.Option(metavar="TEXT", help="Kept with the job.")] = None,
    dsn: Dsn = None,
) -> None:
    """Stop jobs for good. Whoever runs one can write nothing more from that moment on.

    \b
    Examples:
      faultline cancel 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01 --because "the order was withdrawn"
      faultline jobs --queue mail --state queued --json | jq -r .id | xargs faultline cancel
    """
    from faultline.store import queue as verbs  # noqa: PLC0415

    _for_each(job_ids, dsn, lambda found: verbs.cancel(found, because))


def _for_each(job_ids: Sequence[str], dsn: str | None, verb: Callable[[UUID], Statement[JobState]]) -> None:
    """One job that cannot be changed does not keep the others from it; the exit code tells that there was one."""
    wanted = [values.job_id(text) for text in job_ids]
    refused = 0
    with opened(dsn) as database:
        database.facts()
        for found in wanted:
            try:
                print(f"{found} {database.run(verb(found))}")
            except FaultlineError as error:
                print(f"faultline: {error}", file=sys.stderr)
                refused += 1
    if refused:
        raise typer.Exit(1)

"""The command that enqueues a job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faultline.cli import parse
from faultline.cli.commands.database import AsJson, Dsn, print_json
from faultline.core.bounds import ATTEMPTS_MAX, PRIORITY_MAX
from faultline.core.settings import choose_dsn

if TYPE_CHECKING:
    from faultline.app.handle import JobHandle
    from faultline.core.model import Json, Submission

Args = Annotated[str, typer.Argument(help="The arguments as a JSON object; - reads them from standard input.")]
Queue = Annotated[str | None, typer.Option(metavar="NAME", help="The queue. Default: default.")]
Delay = Annotated[str | None, typer.Option(metavar="SPAN", help="Earliest start, from now: 90s, 5m, 1h30m, 2d.")]
Priority = Annotated[
    int | None, typer.Option(min=-PRIORITY_MAX, max=PRIORITY_MAX, metavar="NUMBER", help="Lower runs first. Default: 0.")
]
Key = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Idempotency key: enqueueing again with the same key creates no second job."),
]
MaxAttempts = Annotated[
    int | None, typer.Option(min=1, max=ATTEMPTS_MAX, metavar="NUMBER", help="Attempts before the job fails. Default: 5.")
]
Expires = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Cancel the job unless a worker has claimed it within this time: 10m.")
]
Group = Annotated[str | None, typer.Option(metavar="KEY", help="Whose job it is: jobs of one group share its limits.")]
While = Annotated[
    str | None, typer.Option("--unique", metavar="WHILE", help="Create no second job while one is queued, or open.")
]
UniqueKey = Annotated[str | None, typer.Option(metavar="TEXT", help="What is the same. Default: task and arguments.")]
Period = Annotated[str | None, typer.Option(metavar="SPAN", help="Create no second job within this time: 1h.")]
Debounce = Annotated[str | None, typer.Option(metavar="SPAN", help="Run it so long after the last enqueue: 5s.")]
AtMost = Annotated[str | None, typer.Option(metavar="SPAN", help="But not later than so long after the first.")]
Replace = Annotated[bool, typer.Option("--replace", help="Give the queued job these arguments.")]


def enqueue(  # noqa: PLR0913, PLR0917 - one for each option
    task: Annotated[str, typer.Argument(help="The name of the task, as registered in the worker.")],
    args: Args = "{}",
    queue: Queue = None,
    delay: Delay = None,
    priority: Priority = None,
    key: Key = None,
    max_attempts: MaxAttempts = None,
    expires: Expires = None,
    group: Group = None,
    unique: While = None,
    unique_key: UniqueKey = None,
    period: Period = None,
    debounce: Debounce = None,
    at_most: AtMost = None,
    replace: Replace = False,  # noqa: FBT002
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Enqueue a job and print its id.

    The command does not know your tasks: an option that is not given has the database's default, not the task's.

    \b
    Examples:
      faultline enqueue charge '{"order_id": 42}'
      faultline enqueue report '{"day": "2026-01-31"}' --queue slow --delay 1h30m
      faultline enqueue charge '{"order_id": 42}' --key order:42
      faultline enqueue index '{"doc": 7}' --unique-key doc:7 --debounce 5s --expires 1h
    """
    from faultline.app.application import Faultline  # noqa: PLC0415
    from faultline.core.model import Submission  # noqa: PLC0415 - late, so that --help is quick

    submission = Submission(
        task=task,
        args=parse.arguments(args),
        queue=queue,
        priority=priority,
        delay_seconds=parse.span(delay),
        max_attempts=max_attempts,
        idempotency_key=key,
        group=group,
        expires_seconds=parse.span(expires),
        unique=_unique(unique, unique_key, parse.span(period), parse.span(debounce), parse.span(at_most), replace=replace),
    )
    with Faultline(choose_dsn(dsn)) as app:
        made = app.enqueue_many([submission])[0]
    _print(made, submission, as_json=as_json)


def _print(made: JobHandle[Any], submission: Submission, *, as_json: bool) -> None:
    if as_json:
        print_json({"id": made.id, "created": made.created})
        return
    print(made.id)
    if not made.created:
        same = "its unique key" if submission.unique is not None else f"the key {submission.idempotency_key}"
        print(f"a job with {same} exists already; no new job was enqueued", file=sys.stderr)


def unique_words(wanted: str | None, key: str | None) -> Json | None:
    """What `--unique` and `--unique-key` say; None: they say nothing."""
    return _unique(wanted, key, None, None, None, replace=False)


def _unique(
    wanted: str | None,
    key: str | None,
    period: float | None,
    debounce: float | None,
    at_most: float | None,
    *,
    replace: bool,
) -> Json | None:
    """What the options say of uniqueness; None: they say nothing."""
    if wanted is None and key is None and period is None and debounce is None and at_most is None and not replace:
        return None
    from faultline.attempt.uniqueness import Unique  # noqa: PLC0415

    # A period alone throttles.
    while_ = wanted or (None if period is not None and debounce is None else "queued")
    then = "replace" if replace else "keep"
    made = Unique(while_, key, period, then, debounce, at_most)  # type: ignore[arg-type]  # it says what is wrong
    return made.stated() if key is None else made.stated() | {"key": key}

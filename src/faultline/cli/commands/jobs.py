"""Commands for jobs: list, show, cancel, retry, undo."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli import parse
from faultline.cli.commands.database import AsJson, Dsn, opened, print_json
from faultline.core.errors import (
    ConfigError,
    DatabaseUnavailable,
    FaultlineError,
    JobNotFound,
    OutcomeUnknown,
    PermissionDenied,
    SetupError,
)
from faultline.core.settings import without_password
from faultline.core.states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from faultline.core.model import JobRecord
    from faultline.store.database import Database
    from faultline.store.reads.cancellable import UnendedFilter
    from faultline.store.reads.failures import FailedFilter
    from faultline.store.reads.groups import Permit
    from faultline.store.reads.listing import Page
    from faultline.store.statement import Statement

_GONE = "it was never enqueued in this database, or it was pruned after its retention time"
Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Recorded in the journal, with who did it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def jobs(  # noqa: PLR0913, PLR0917 - one for each option
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this queue.")] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this task.")] = None,
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    younger: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Enqueued at most this long ago: 90s, 5m, 1h30m, 2d.")
    ] = None,
    older: Annotated[str | None, typer.Option(metavar="SPAN", help="Enqueued longer ago than this.")] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="Only jobs with this idempotency key.")] = None,
    group: Annotated[str | None, typer.Option(metavar="KEY", help="Only jobs of this group.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="NUMBER", help="Jobs per page.")] = 20,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue after this cursor, as printed by the page before.")
    ] = None,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """List jobs, newest first; failed jobs by when they failed, a queue's queued jobs by priority and time.

    If there are more, the command for the next page is printed to standard error.

    \b
    Examples:
      faultline jobs
      faultline jobs --state failed --task charge --younger 1h
      faultline jobs --queue mail --state queued --limit 100
      faultline jobs --key order:42 --json
    """
    from datetime import timedelta  # noqa: PLC0415 - late, so that --help is quick

    from faultline.store.reads import listing, views  # noqa: PLC0415

    spans = [None if text is None else timedelta(seconds=parse.seconds(text)) for text in (younger, older)]
    with opened(dsn) as database:
        now = database.run(views.clock())
        since, until = (None if span is None else now - span for span in spans)
        wanted = listing.Wanted(state, queue, task, created_after=since, created_before=until, key=key, group=group)
        cursor = None if after is None else parse.cursor(after, listing.order_of(wanted).types)
        page = database.run(listing.jobs(wanted, page_jobs=limit, behind=cursor))
    _print_page(page, now, as_json=as_json)
    if page.behind is not None:
        asked = {"--queue": queue, "--task": task, "--state": state, "--younger": younger, "--older": older, "--key": key}
        # Print no password: the text may go into a log.
        asked |= {"--group": group, "--limit": str(limit), "--dsn": None if dsn is None else without_password(dsn)}
        words = [word for name, value in asked.items() if value is not None for word in (name, value)]
        words += ["--json"] if as_json else []
        why = "10,000 jobs were searched; continue with" if page.stopped_early else "more"
        sys.stdout.flush()
        more = shlex.join(["faultline", "jobs", *words, "--after", parse.cursor_text(page.behind)])
        print(f"{why}: {more}", file=sys.stderr)


def _print_page(page: Page, now: datetime, *, as_json: bool) -> None:
    if as_json:
        for line in page.jobs:
            print_json(asdict(line))
    elif page.jobs:
        from faultline.cli.printing import screen, tables  # noqa: PLC0415

        screen.show(screen.console(), tables.job_table(page.jobs, now))
    else:
        print("no jobs match" + (" so far" if page.stopped_early else ""))


def job(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id, or its first digits.")],
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Show one job: who held it under which token, how each attempt ended, refused writes, and completed steps.

    \b
    Examples:
      faultline job 0198c2e4-5d3a
      faultline job 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01 --json | jq .epochs
    """
    from faultline.explain.epochs import epochs  # noqa: PLC0415
    from faultline.store.reads import groups, suspended, views  # noqa: PLC0415

    with opened(dsn) as database:
        wanted = parse.job_id(database, job_id)
        record = database.run(views.job(wanted))
        if record is None:
            raise JobNotFound(f"no job {wanted}; {_GONE}")
        journal = database.run(views.journal(wanted))
        steps, in_ledger = database.run(views.steps(wanted)), database.run(views.ledger_rows(wanted))
        waits = database.run(suspended.awaited([wanted])) if record.suspended else []
        permit = None if record.state.ended else database.run(groups.permit(wanted))
        now = database.run(views.clock())
        held_up = _held_up(database, record, permit, now)
    lives = epochs(record, journal)
    if as_json:
        print_json(
            {
                **asdict(record),
                "permit": None if permit is None or not permit.limited else asdict(permit),
                "waits_for": held_up["waits for"],
                "ledger_rows": in_ledger,
                "epochs": [asdict(epoch) for epoch in lives],
                "journal": [asdict(entry) for entry in journal],
                "steps": [asdict(step) for step in steps],
            }
        )
        return
    from faultline.cli.printing import job_view, screen, tables  # noqa: PLC0415

    console = screen.console()
    job_view.print_record(console, record, journal, now=now, in_ledger=in_ledger, waits=waits, held_up=held_up)
    console.print()
    job_view.print_lives(console, record, journal, lives, now=now)
    if steps:
        console.print()
        screen.show(console, tables.step_table(steps, now))
    job_view.print_values(console, record)


def _held_up(database: Database, record: JobRecord, permit: Permit | None, now: datetime) -> dict[str, str]:
    """Why it does not start: limits, and what is missing of its queue and its workers."""
    from faultline.explain.limits import standing  # noqa: PLC0415
    from faultline.explain.why_not_running import awaited  # noqa: PLC0415
    from faultline.store.reads import overview  # noqa: PLC0415

    workers = database.run(overview.workers()) if record.state is JobState.QUEUED else []
    return {"permit": standing(record, permit, now), "waits for": awaited(record, permit, workers, now)}


def cancel(  # noqa: PLR0913, PLR0917 - one for each option
    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="Ids of jobs, or their first digits.")
    ] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Instead of ids: all jobs of this queue.")] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Likewise: of this task.")] = None,
    group: Annotated[str | None, typer.Option(metavar="KEY", help="Likewise: of this group.")] = None,
    state: Annotated[JobState | None, typer.Option(help="Likewise: queued or running ones. Default: both.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the jobs that match.")] = False,  # noqa: FBT002
    undo: Annotated[  # noqa: FBT002
        bool, typer.Option("--undo", help="With ids: undo what their sagas, and those of their children, have begun.")
    ] = False,
    reason: Why = None,
    yes: Yes = False,  # noqa: FBT002
    dsn: Dsn = None,
) -> None:
    """Cancel jobs. The database refuses every further write of a worker that runs one.

    On a terminal, asks for the reason and for confirmation. Without ids, says first how many jobs match.

    \b
    Examples:
      faultline cancel 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01 --reason "the order was withdrawn"
      faultline cancel --queue mail --state queued --dry-run
      faultline cancel --queue mail --task remind --yes --reason "wrong addresses"
    """
    from faultline import operate  # noqa: PLC0415
    from faultline.store.reads.cancellable import UnendedFilter  # noqa: PLC0415

    matching = any(value is not None for value in (queue, task, group, state))
    if matching == bool(job_ids) or (job_ids and dry_run) or (matching and undo):
        raise ConfigError("give job ids, or select jobs with --queue, --task, --group or --state; --undo needs ids")
    by = operate.this_user()
    if not job_ids:
        _cancel_matching(UnendedFilter(queue, task, group, state), dsn, reason=reason, by=by, yes=yes, dry_run=dry_run)
        return
    if sys.stdin.isatty() and not yes:
        what = "this job" if len(job_ids) == 1 else f"these {len(job_ids)} jobs"
        reason = _asked_why(what, reason)
    _for_each(job_ids, dsn, lambda found: operate.cancel(found, reason=reason, undo=undo, by=by))


def _asked_why(what: str, reason: str | None) -> str:
    reason = reason or typer.prompt("Why", err=True)
    if not typer.confirm(f"Cancel {what}?", err=True):
        raise typer.Exit(1)
    return reason


def _cancel_matching(
    which: UnendedFilter, dsn: str | None, *, reason: str | None, by: str, yes: bool, dry_run: bool
) -> None:
    from faultline import operate  # noqa: PLC0415

    with opened(dsn) as database:
        counted = _counted(database, which)
        if counted is None or dry_run:
            return
        if not yes:
            if not sys.stdin.isatty():
                # With exit code 0 a script would go on as if they had been cancelled.
                raise SetupError("nothing was cancelled: add --yes to cancel them")
            reason = _asked_why("them", reason)
        work = operate.CancelJobs(counted, reason=reason, by=by)
        while (batch := work.batch()) is not None:
            work.took(database.run(batch))
        print(f"cancelled: {work.jobs:,}")


def _counted(database: Database, which: UnendedFilter) -> UnendedFilter | None:
    """Say how many match. Returns a filter for exactly these, without jobs that are enqueued later."""
    from faultline.store.reads import cancellable  # noqa: PLC0415

    window, queued, running, until = which, 0, 0, None
    while True:
        found = database.run(cancellable.count(window))
        queued, running, until = queued + found.queued, running + found.running, until or found.until
        if found.behind is None:
            break
        window = which.behind(found.behind)
    if until is None:
        print("no jobs match")
        return None
    print(f"matching: {queued:,} queued, {running:,} running")
    return which.behind(until)


def retry(
    job_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="Ids of failed or cancelled jobs, or their first digits."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Every failed job that matches the options.")] = False,  # noqa: FBT002
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="With --failed: only this queue.")] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="With --failed: only this task.")] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --failed: only errors that begin with this.")
    ] = None,
    reason: Why = None,
    yes: Yes = False,  # noqa: FBT002
    dsn: Dsn = None,
) -> None:
    """Retry failed or cancelled jobs, with all their attempts again.

    With --failed, shows first what would be retried, and asks for confirmation.

    \b
    Examples:
      faultline retry 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01 --reason "the bank is back"
      faultline retry --failed --task charge --error TimedOut
      faultline retry --failed --queue mail --yes
    """
    from faultline import operate  # noqa: PLC0415
    from faultline.store.reads.failures import FailedFilter  # noqa: PLC0415

    if failed == bool(job_ids) or (job_ids and (queue or task or error)):
        raise ConfigError("give job ids, or select failed jobs with --failed [--queue ..] [--task ..] [--error ..]")
    by = operate.this_user()
    if job_ids:
        _for_each(job_ids, dsn, lambda found: operate.retry(found, reason=reason, by=by))
        return
    which = FailedFilter(queue=queue, task=task, error_prefix=error)
    with opened(dsn) as database:
        shown = _previewed(database, which)
        if shown is not None and (yes or _agreed()):
            work = operate.RetryFailed(shown, reason=reason, by=by)
            while (batch := work.batch()) is not None:
                work.took(database.run(batch))
            print(f"requeued: {work.jobs:,}")
            if work.refused:
                print(f"not requeued: {work.refused:,}, since that cannot help; faultline retry JOB says why")


def undo(
    job_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids of failed or cancelled jobs, or their first digits.")
    ],
    reason: Why = None,
    dsn: Dsn = None,
) -> None:
    """Undo what the sagas of failed or cancelled jobs have begun.

    Each job is queued again for that, and ends as it had ended. What is undone already is not undone again.

    \b
    Examples:
      faultline undo 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01 --reason "its worker was lost in the last attempt"
    """
    from faultline import operate  # noqa: PLC0415

    by = operate.this_user()
    _for_each(job_ids, dsn, lambda found: operate.undo(found, reason=reason, by=by))


def _previewed(database: Database, which: FailedFilter) -> FailedFilter | None:
    """Show the failed jobs in groups. Returns a filter for exactly these, without jobs that fail later."""
    from faultline.cli.printing import screen, tables  # noqa: PLC0415
    from faultline.store.install import rights  # noqa: PLC0415
    from faultline.store.reads import failures, views  # noqa: PLC0415

    try:
        found = database.run(failures.groups(which))
    except PermissionDenied as error:
        # This login may not count failed jobs: name the right to retry, which includes it and is needed next.
        needed = rights.right_to_use("retry_failed")
        raise PermissionDenied(f"permission denied for function retry_failed; {needed}") from error
    if not found.groups or found.until is None:
        print("no failed jobs match" + (f" among the newest {failures.WINDOW:,}" if found.at_least else ""))
        return None
    screen.show(screen.console(), tables.failure_table(found.groups, database.run(views.clock())))
    if found.at_least:
        print(f"these are of the newest {failures.WINDOW:,} failed jobs; there may be more, and all that match are retried")
    return which.behind(found.until)


def _agreed() -> bool:
    if not sys.stdin.isatty():
        # With exit code 0 a script would go on as if they had been retried.
        raise SetupError("nothing was retried: add --yes to retry them")
    return typer.confirm("Retry them?")


def _for_each(job_ids: Sequence[str], dsn: str | None, verb: Callable[[UUID], Statement[JobState]]) -> None:
    """Go on after a job that cannot be changed; the exit code is then 1.

    Stop if the database does not answer: each of the other jobs would wait as long.
    """
    refused = 0
    with opened(dsn) as database:
        database.facts()
        wanted = [parse.job_id(database, text) for text in job_ids]
        for number, found in enumerate(wanted, start=1):
            try:
                print(f"{found} {database.run(verb(found))}")
            except PermissionDenied:
                raise  # the other jobs would fail in the same way
            except FaultlineError as error:
                print(f"faultline: {error}", file=sys.stderr)
                refused += 1
                if isinstance(error, DatabaseUnavailable | OutcomeUnknown) and number < len(wanted):
                    left = " ".join(map(str, wanted[number:]))
                    print(f"faultline: not tried, because the database does not answer: {left}", file=sys.stderr)
                    break
    if refused:
        raise typer.Exit(1)

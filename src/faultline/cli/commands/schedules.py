"""Commands for schedules: list and show them, set, reset, pause, resume, run, backfill and remove one."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from faultline.cli import parse
from faultline.cli.commands.database import AsJson, Dsn, opened, print_json
from faultline.cli.commands.enqueue import Args, Expires, Group, MaxAttempts, Priority, UniqueKey, While, unique_words
from faultline.core.errors import ConfigError, ScheduleNotFound

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Submission
    from faultline.core.schedules import Policy, Rule
    from faultline.store.database import Database
    from faultline.store.reads.schedules import ScheduleLine

schedules = typer.Typer(rich_markup_mode=None, add_completion=False)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]
_Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Recorded in the journal, with who did it.")]
_UPCOMING_MAX = 1000
_Queue = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The queue. Default: the one on which living workers serve the task, if it is exactly one; or that of the"
        " schedule as it is; or default.",
    ),
]
_Cron = Annotated[
    str | None,
    typer.Option(metavar="LINE", help="Minute, hour, day of the month, month, day of the week: '0 9 * * mon-fri'."),
]
_Zone = Annotated[str | None, typer.Option(metavar="ZONE", help="The time zone of the cron line. Default: UTC.")]
_Every = Annotated[str | None, typer.Option(metavar="SPAN", help="An interval: 90s, 5m, 1h30m, 2d.")]
_At = Annotated[str | None, typer.Option(metavar="TIME", help="Once, at this moment: 2027-01-01T06:00Z.")]
_CatchUp = Annotated[
    str | None, typer.Option(metavar="skip|latest|all", help="Which missed ticks make jobs. Default: latest.")
]
_CatchUpWithin = Annotated[
    str | None, typer.Option(metavar="SPAN", help="How late a tick may be caught up. Default: a day.")
]
_Overlap = Annotated[
    str | None, typer.Option(metavar="allow|skip|one|cancel", help="While the job before has not ended. Default: allow.")
]
_Jitter = Annotated[str | None, typer.Option(metavar="SPAN", help="Jobs run up to so much later.")]
_TickArg = Annotated[str | None, typer.Option(metavar="NAME", help="The argument that gets the moment of the tick.")]


@schedules.callback(invoke_without_command=True)
def listed(ctx: typer.Context, dsn: Dsn = None, as_json: AsJson = False) -> None:  # noqa: FBT002 - a command's flag
    """Show the schedules, or operate one.

    \b
    Examples:
      faultline schedules
      faultline schedules --json | jq -r 'select(.state != "active") | .name'
      faultline schedules show report
      faultline schedules pause report --reason "the bank is closed"
    """
    if ctx.invoked_subcommand is not None:
        return
    from faultline.store.reads import schedules as reads  # noqa: PLC0415 - late, so that --help is quick

    with opened(dsn) as database:
        lines = database.run(reads.schedules())
    if as_json:
        for line in lines:
            print_json(_shown(line))
        return
    from faultline.cli.printing import schedule_tables, screen  # noqa: PLC0415

    console = screen.console()
    if lines:
        screen.show(console, schedule_tables.schedule_table(lines))
    else:
        console.print("No schedules: one of the code is there once a worker with it has started.", style="quiet")


@schedules.command("next")
def upcoming(
    name: _Name,
    count: Annotated[int, typer.Option(min=1, max=_UPCOMING_MAX, metavar="NUMBER", help="How many.")] = 5,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Print the next ticks of a schedule: in UTC, and by the clocks of its time zone.

    \b
    Example:
      faultline schedules next report --count 10
    """
    with opened(dsn) as database:
        line = _found(database, name)
    ticks = line.upcoming(count)
    if as_json:
        for at in ticks:
            print_json({"at": at})
        return
    for at in ticks:
        print(f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC   {_local(line, at)}")
    if not ticks:
        print(f"no tick is to come: {name} is {line.state}")


@schedules.command()
def show(
    name: _Name,
    ticks: Annotated[int, typer.Option(min=0, max=1000, metavar="NUMBER", help="How many past ticks.")] = 20,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Show a schedule, its next ticks, and what became of past ones.

    \b
    Examples:
      faultline schedules show report
      faultline schedules show report --ticks 1000 --json | jq '.ticks[] | select(.outcome == "missed")'
    """
    from faultline.store.reads import tick_history  # noqa: PLC0415 - late, so that --help is quick

    with opened(dsn) as database:
        line = _found(database, name)
        past = database.run(tick_history.ticks(name, page_rows=ticks)).ticks if ticks else []
    if as_json:
        print_json(_shown(line) | {"upcoming": line.upcoming(), "ticks": [asdict(tick) for tick in past]})
        return
    from faultline.cli.printing import schedule_tables, screen  # noqa: PLC0415

    console = screen.console()
    for text in schedule_tables.facts(line, lambda at: _local(line, at)):
        console.print(text, soft_wrap=True)
    if past:
        screen.show(console, schedule_tables.tick_table(past, line.clock, lambda at: _local(line, at)))


@schedules.command("set")
def set_(  # noqa: PLR0913, PLR0917 - one for each option
    name: _Name,
    task: Annotated[str, typer.Argument(help="The name of the task, as registered in the worker.")],
    args: Args = "{}",
    cron: _Cron = None,
    tz: _Zone = None,
    every: _Every = None,
    at: _At = None,
    queue: _Queue = None,
    group: Group = None,
    priority: Priority = None,
    max_attempts: MaxAttempts = None,
    expires: Expires = None,
    unique: While = None,
    unique_key: UniqueKey = None,
    catch_up: _CatchUp = None,
    catch_up_within: _CatchUpWithin = None,
    overlap: _Overlap = None,
    jitter: _Jitter = None,
    tick_arg: _TickArg = None,
    reason: _Why = None,
    dsn: Dsn = None,
) -> None:
    """Make a schedule, or change one. What is set here wins over what the code of workers says, until it is reset.

    The command does not know your tasks: its job has the options that are given here, not those of the task.

    \b
    Examples:
      faultline schedules set digest-42 digest '{"user": 42}' --cron "0 7 * * *" --tz America/New_York
      faultline schedules set sync sync_all --every 5m --overlap skip --reason "asked for by sales"
    """
    from faultline.core.model import Submission  # noqa: PLC0415 - late, so that --help is quick
    from faultline.core.schedules import Policy, Rule  # noqa: PLC0415

    rule = Rule(cron, tz, parse.span(every), None if at is None else _moment(at))
    # They check their words.
    policy = Policy(catch_up, parse.span(catch_up_within), overlap, parse.span(jitter), tick_arg)  # type: ignore[arg-type]
    job = Submission(task, parse.arguments(args), queue=queue, group=group, priority=priority, max_attempts=max_attempts)
    job.expires_seconds = parse.span(expires)
    job.unique = unique_words(unique, unique_key)
    with opened(dsn) as database:
        _set(database, name, rule, job, policy, reason)


def _set(database: Database, name: str, rule: Rule, job: Submission, policy: Policy, reason: str | None) -> None:
    from faultline import operate  # noqa: PLC0415
    from faultline.operate import schedule_notes  # noqa: PLC0415
    from faultline.store.reads import overview, views  # noqa: PLC0415
    from faultline.store.reads import schedules as reads  # noqa: PLC0415

    workers, now = database.run(overview.workers()), database.run(views.clock())
    there = database.run(reads.schedule(name))
    job.queue = job.queue or schedule_notes.queue_for(job.task, workers, there)
    notes = [] if job.queue else schedule_notes.unsure(job.task, workers)
    changed = database.run(operate.set_schedule(name, rule, job, policy, reason=reason, by=operate.this_user()))
    queue = job.queue or "default"
    print(f"{name}: {rule.text}, queue {queue}" if changed else f"{name} was so already; nothing was changed")
    notes += schedule_notes.changes(name, job, there) + schedule_notes.doubts(job.task, queue, rule, workers, now)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


@schedules.command()
def reset(name: _Name, reason: _Why = None, dsn: Dsn = None) -> None:
    """Undo what was set for a schedule of the code: what the code says holds again.

    \b
    Example:
      faultline schedules reset report --reason "the campaign is over"
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick

    with opened(dsn) as database:
        changed = database.run(operate.reset_schedule(name, reason=reason, by=operate.this_user()))
        line = _found(database, name)
    if changed:
        print(f"{name}: {line.rule_text}, queue {line.queue}, as in the code")
    else:
        print(f"nothing was set for {name}; it stays as the code says")


@schedules.command()
def pause(name: _Name, reason: _Why = None, dsn: Dsn = None) -> None:
    """Pause a schedule: its ticks make no jobs until it is resumed, and are not caught up then.

    \b
    Example:
      faultline schedules pause report --reason "the bank is closed"
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick

    with opened(dsn) as database:
        since = database.run(operate.pause_schedule(name, reason=reason, by=operate.this_user()))
    print(f"{name} paused since {since.astimezone():%Y-%m-%d %H:%M:%S}; jobs that exist go on")


@schedules.command()
def resume(name: _Name, reason: _Why = None, dsn: Dsn = None) -> None:
    """Resume a schedule: ticks from now on count.

    \b
    Example:
      faultline schedules resume report
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick

    with opened(dsn) as database:
        was_paused = database.run(operate.resume_schedule(name, reason=reason, by=operate.this_user()))
    print(f"{name} resumed" if was_paused else f"{name} was not paused")


@schedules.command("run-now")
def run_now(name: _Name, reason: _Why = None, dsn: Dsn = None, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Enqueue the job of a schedule now, beside its ticks, and print its id.

    \b
    Example:
      faultline schedules run-now report --reason "the auditor asks"
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick

    with opened(dsn) as database:
        job_id: UUID = database.run(operate.run_schedule(name, reason=reason, by=operate.this_user()))
    if as_json:
        print_json({"id": job_id})
    else:
        print(job_id)


@schedules.command()
def backfill(
    name: _Name,
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="The earliest tick: 2026-11-01, 2026-11-01T06:00Z.")],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="Ticks before this moment.")],
    reason: _Why = None,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Run ticks of the past that have no job: missed and skipped ones, and those from before there was the schedule.

    Times without a zone are UTC. Sent twice, it enqueues once.

    \b
    Example:
      faultline schedules backfill report --from 2026-11-01 --to 2026-11-08 --reason "the import was wrong"
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick

    first, last = _moment(since), _moment(until) - timedelta(microseconds=1)
    if last < first:
        raise ConfigError(f"--to {until} is not after --from {since}; swap them")
    with opened(dsn) as database:
        line = _found(database, name)
        jobs = database.run(operate.backfill(line, first, last, reason=reason, by=operate.this_user()))
    if as_json:
        print_json({"jobs": jobs})
    elif jobs:
        print(f"{jobs:,} job{'s' * (jobs != 1)} enqueued")
    else:
        print("nothing to do: there are no ticks in that time, or each has its job")


@schedules.command()
def remove(name: _Name, reason: _Why = None, dsn: Dsn = None) -> None:
    """Remove a schedule. Its jobs stay. One that is in the code of a living worker is refused.

    \b
    Example:
      faultline schedules remove digest-42 --reason "has left"
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick

    with opened(dsn) as database:
        removed = database.run(operate.remove_schedule(name, reason=reason, by=operate.this_user()))
    if not removed:
        raise _unknown(name)
    print(f"{name} removed")


def _found(database: Database, name: str) -> ScheduleLine:
    from faultline.store.reads import schedules as reads  # noqa: PLC0415 - late, so that --help is quick

    line = database.run(reads.schedule(name))
    if line is None:
        raise _unknown(name)
    return line


def _unknown(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(
        f'no schedule named "{name}"; `faultline schedules` lists them, and one of the code is there once a worker with it'
        " has started"
    )


def _shown(line: ScheduleLine) -> dict[str, object]:
    return asdict(line) | {"state": line.state}


def _local(line: ScheduleLine, at: datetime) -> str:
    """A moment as the clocks of its time zone show it."""
    try:
        zone = ZoneInfo(line.tz or "UTC")
    except Exception:  # noqa: BLE001 - its time zone is newer than this system
        zone = ZoneInfo("UTC")
    return f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"


def _moment(text: str) -> datetime:
    """Without a zone, UTC."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(f"invalid time {text}; write 2026-11-01 or 2026-11-01T06:00Z") from None

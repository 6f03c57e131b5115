"""Commands for limits: what a queue and its groups may do, what they do now, and changing it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from faultline.cli import parse
from faultline.cli.commands.database import AsJson, Dsn, opened, print_json
from faultline.core.errors import BudgetNotFound, ConfigError
from faultline.core.settings import without_password

if TYPE_CHECKING:
    from faultline.core.limits import BudgetRecord, LimitRecord
    from faultline.store.database import Database
    from faultline.store.reads.groups import QueueUse

_Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Recorded in the journal, with who did it.")]
_Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]
_Group = Annotated[
    str | None, typer.Option(metavar="KEY", help="Only this group; * is each group. Default: the queue as a whole.")
]
_Budget = Annotated[str, typer.Argument(metavar="BUDGET", help="The name of the budget.")]
_NONE = "none"
#: How a field that the code declares is lifted. A weight is no limit.
_LIFTED = {"concurrency": "--concurrency none", "rate": "--rate none", "ordered": "--unordered", "weight": "--weight 1"}
_PER = "The time of the rate: 1s, 5m, 1h. Default: that of the rate in force, or 1s."
_BURST = "Default: that in force, less in proportion if the rate is lower; or the rate."


class _QueueOrCommand(TyperGroup):
    """`limits QUEUE` shows one queue; `limits set …` and `limits reset …` are commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


limits = typer.Typer(rich_markup_mode=None, add_completion=False, cls=_QueueOrCommand)


@limits.callback(invoke_without_command=True)
def listed(ctx: typer.Context, dsn: Dsn = None, as_json: AsJson = False) -> None:  # noqa: FBT002 - a command's flag
    """Show what queues and their groups may do and what they do now, and what is in budgets, or change it.

    `faultline limits QUEUE` shows one queue. What is set here wins over what the code declares, until it is reset.

    \b
    Examples:
      faultline limits
      faultline limits mail
      faultline limits set mail --concurrency 20 --reason "the provider asked for it"
      faultline limits set mail --group tenant-7 --rate 100 --per 1m --burst 10
      faultline limits reset mail --group tenant-7
    """
    if ctx.invoked_subcommand is None:
        with opened(dsn) as database:
            _show(database, None, as_json=as_json)


@limits.command(hidden=True)
def show(queue: _Queue, dsn: Dsn = None, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Show the limits of one queue."""
    with opened(dsn) as database:
        _show(database, queue, as_json=as_json)


@limits.command("set")
def set_limit(  # noqa: PLR0913, PLR0917 - one for each option
    queue: _Queue,
    group: _Group = None,
    concurrency: Annotated[str | None, typer.Option(metavar="NUMBER", help="Jobs at once; none: any number.")] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Jobs that may start per period (--per); none: any number.")
    ] = None,
    per: Annotated[str | None, typer.Option(metavar="SPAN", help=_PER)] = None,
    burst: Annotated[str | None, typer.Option(metavar="NUMBER", help=f"Jobs that may start at once. {_BURST}")] = None,
    weight: Annotated[str | None, typer.Option(metavar="NUMBER", help="The share of a group beside others.")] = None,
    ordered: Annotated[
        bool | None, typer.Option("--ordered/--unordered", help="Jobs of a group run one after the other, in order.")
    ] = None,
    reason: _Reason = None,
    dsn: Dsn = None,
) -> None:
    """Set a limit of a queue, of each of its groups, or of one group. It holds at once, in all workers.

    Only what is named changes. Running jobs go on, also above a lower limit. To stop a queue, pause it.

    \b
    Examples:
      faultline limits set mail --concurrency 20 --reason "the provider asked for it"
      faultline limits set mail --group '*' --concurrency 2
      faultline limits set mail --group tenant-7 --rate 100 --per 1m --burst 10 --weight 3
      faultline limits set mail --concurrency none
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick

    given = {"concurrency": concurrency, "rate": rate, "burst": burst, "weight": weight}
    fields: dict[str, Any] = {name: _number(name, text) for name, text in given.items() if text is not None}
    if per is not None:
        fields["per"] = parse.seconds(per)
    if ordered is not None:
        fields["ordered"] = ordered
    if not fields:
        raise ConfigError("nothing to set: name --concurrency, --rate, --weight or --ordered; `faultline limits` shows them")
    if ("per" in fields or "burst" in fields) and "rate" not in fields:
        raise ConfigError("--per and --burst belong to a rate; give --rate too")
    with opened(dsn) as database:
        database.run(operate.set_limit(queue, group or "", fields, reason=reason, by=operate.this_user()))
        _show(database, queue, as_json=False)
        note_unserved(database, queue)


@limits.command()
def reset(queue: _Queue, group: _Group = None, reason: _Reason = None, dsn: Dsn = None) -> None:
    """Undo what was set: what the code declares holds again.

    \b
    Example:
      faultline limits reset mail --group tenant-7 --reason "the campaign is over"
    """
    from faultline import operate  # noqa: PLC0415
    from faultline.store.reads import limits as stored  # noqa: PLC0415

    with opened(dsn) as database:
        changed = database.run(operate.reset_limit(queue, group or "", reason=reason, by=operate.this_user()))
        _show(database, queue, as_json=False)
        if not changed:
            print(_not_set(queue, group or "", database.run(stored.limits(queue))), file=sys.stderr)


def _not_set(queue: str, group: str, found: list[LimitRecord]) -> str:
    """Why a reset has changed nothing, and what to do instead."""
    from faultline.explain.limits import whose  # noqa: PLC0415

    said = f"note: nothing was set for {whose(group)}{f' of {queue}' if group else f' {queue}'}"
    declared = {field for one in found if one.group == group for field in one.declared}
    if declared:
        named = f"{queue} --group {shlex.quote(group)}" if group else queue
        lifts = " ".join(words for field, words in _LIFTED.items() if field in declared)
        return f"{said}; it stays as the code declares it. To lift that: faultline limits set {named} {lifts}"
    others = [whose(one.group) for one in found if one.override]
    return f"{said}; something is set for {', '.join(others)}" if others else said


@limits.command("set-budget")
def set_budget(
    budget: _Budget,
    rate: Annotated[str, typer.Option(metavar="NUMBER", help="How much jobs may take per period (--per).")],
    per: Annotated[str | None, typer.Option(metavar="SPAN", help=_PER)] = None,
    burst: Annotated[str | None, typer.Option(metavar="NUMBER", help=f"The most that there ever is. {_BURST}")] = None,
    reason: _Reason = None,
    dsn: Dsn = None,
) -> None:
    """Set a budget that running jobs take from. It holds at once; jobs that wait for it ask again if more may be taken.

    \b
    Example:
      faultline limits set-budget openai --rate 90000 --per 1m --burst 20000 --reason "a larger contract"
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick

    fields = {"rate": _number("rate", rate)}
    if per is not None:
        fields["per"] = parse.seconds(per)
    if burst is not None:
        fields["burst"] = _number("burst", burst)
    with opened(dsn) as database:
        database.run(operate.set_budget(budget, fields, reason=reason, by=operate.this_user()))
        _show_budget(database, budget)


@limits.command("reset-budget")
def reset_budget(budget: _Budget, reason: _Reason = None, dsn: Dsn = None) -> None:
    """Undo what was set for a budget: what the code declares holds again. One that no code declares is removed: it was made
    by hand, or nothing is set for it and no running worker has it in its code any more.

    \b
    Example:
      faultline limits reset-budget openai
    """
    from faultline import operate  # noqa: PLC0415

    with opened(dsn) as database:
        changed = database.run(operate.reset_budget(budget, reason=reason, by=operate.this_user()))
        if not _show_budget(database, budget):
            if not changed:
                raise BudgetNotFound(f"there is no budget {budget}; faultline limits lists those that there are")
            print(f"budget {budget} is removed: no code declares it")
        elif not changed:
            print("nothing was set for it; it stays as the code declares it")


def groups(
    queue: _Queue,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="NUMBER", help="Groups per page.")] = 20,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue after this cursor, as printed by the page before.")
    ] = None,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Show the groups of a queue with limits: those that wait longest first, then those that only hold permits.

    If there are more, the command for the next page is printed to standard error.

    \b
    Examples:
      faultline groups mail
      faultline groups mail --json | jq -r 'select(.oldest_seconds > 600) | .group'
    """
    from faultline.store.reads import groups as reads  # noqa: PLC0415 - late, so that --help is quick
    from faultline.store.reads import views  # noqa: PLC0415

    behind = None if after is None else _read_cursor(after)
    with opened(dsn) as database:
        page = database.run(reads.groups(queue, page_rows=limit, behind=behind))
        now = database.run(views.clock())
    if as_json:
        for line in page.groups:
            print_json(asdict(line))
    elif page.groups:
        from faultline.cli.printing import limit_tables, screen  # noqa: PLC0415

        screen.show(screen.console(), limit_tables.group_table(page.groups, now))
    else:
        print(f"no group of {queue} waits or holds a permit")
    if page.behind is not None:
        words = ["--limit", str(limit), *(() if dsn is None else ("--dsn", without_password(dsn)))]
        why = f"{reads.WINDOW:,} groups were compared; continue with" if page.more_groups else "more"
        sys.stdout.flush()
        more = shlex.join(["faultline", "groups", queue, *words, "--after", _cursor_text(page.behind)])
        print(f"{why}: {more}", file=sys.stderr)


def _show(database: Database, queue: str | None, *, as_json: bool) -> None:
    from faultline.store.reads import groups as reads  # noqa: PLC0415
    from faultline.store.reads import limits as stored  # noqa: PLC0415
    from faultline.store.reads import views  # noqa: PLC0415

    uses, found = database.run(reads.in_use(queue)), database.run(stored.limits(queue))
    budgets = database.run(stored.budgets()) if queue is None else []
    if as_json:
        for use in uses:
            print_json({**asdict(use), "limits": [asdict(one) for one in found if one.queue == use.queue]})
        for budget in budgets:
            print_json({"budget": budget.name, **asdict(budget)})
        return
    _print(uses, found, queue, budgets, database.run(views.clock()))


def _show_budget(database: Database, budget: str) -> bool:
    """Whether there is one."""
    from faultline.cli.printing import limit_tables, screen  # noqa: PLC0415
    from faultline.store.reads import limits as stored  # noqa: PLC0415
    from faultline.store.reads import views  # noqa: PLC0415

    found = [one for one in database.run(stored.budgets()) if one.name == budget]
    if found:
        screen.show(screen.console(), limit_tables.budget_table(found, database.run(views.clock())))
    return bool(found)


def note_unserved(database: Database, queue: str) -> None:
    """A misspelt queue gets its limit, or is paused, all the same, and nobody would notice."""
    from faultline.store.reads import overview  # noqa: PLC0415

    workers = database.run(overview.workers())
    if workers and all(queue not in worker.queues for worker in workers):
        served = ", ".join(sorted({name for worker in workers for name in worker.queues})[:10])
        print(f"note: no worker serves {queue}; they serve {served}", file=sys.stderr)


def _print(uses: list[QueueUse], found: list[LimitRecord], queue: str | None, budgets: list[BudgetRecord], now: Any) -> None:
    from faultline.cli.printing import limit_tables, screen  # noqa: PLC0415

    console = screen.console()
    if not uses:
        what = "No queue has limits." if queue is None else f"{queue} has no limits."
        console.print(f"{what} To set one: faultline limits set {queue or 'QUEUE'} --concurrency 20", style="quiet")
    else:
        screen.show(console, limit_tables.use_table(uses))
        if found:
            console.print()
            screen.show(console, limit_tables.limit_table(found, now))
    if budgets:
        console.print()
        screen.show(console, limit_tables.budget_table(budgets, now))


def _number(name: str, text: str) -> float | int | None:
    if text == _NONE:
        return None
    try:
        number = float(text)
    except ValueError:
        count, _, unit = text.partition("/")
        apart = f"; the time of a rate is apart: --rate {count} --per 1{unit[:1] or 's'}" if "/" in text else ""
        raise ConfigError(f"invalid --{name} {text}; write a number, or none{apart}") from None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _cursor_text(cursor: tuple[Any, ...]) -> str:
    from faultline.store import jsontext  # noqa: PLC0415

    start, wait_at, group = cursor
    return jsontext.encode([start, wait_at.isoformat(), group], "cursor")


def _read_cursor(text: str) -> tuple[Any, ...]:
    import json  # noqa: PLC0415
    from datetime import datetime  # noqa: PLC0415

    try:
        start, wait_at, group = json.loads(text)
        return str(start), datetime.fromisoformat(wait_at), str(group)
    except (ValueError, TypeError):
        raise ConfigError(f"invalid cursor {text} for this list; use the one that its last page printed") from None

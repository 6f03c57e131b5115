"""Commands for flows: show one as a tree, fork a job, send a signal, list what waits."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli import parse
from faultline.cli.commands.database import AsJson, Dsn, opened, print_json
from faultline.cli.commands.jobs import Why  # noqa: TC001 - Typer looks at it
from faultline.core.errors import ConfigError, JobNotFound, PermissionDenied
from faultline.core.settings import without_password

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Json
    from faultline.store.database import Database
    from faultline.store.reads.flows import Flow

_GONE = "it was never enqueued in this database, or it was pruned after its retention time"
_OF_KEY = "key:"


class WaitKind(StrEnum):
    """What a job can wait for."""

    SIGNAL = "signal"
    SLEEP = "sleep"
    CHILDREN = "children"
    WATCH = "watch"
    AFTER = "after"
    RETRY = "retry"


def flow(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a job, or its first digits.")],
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Show a job and all below it as a tree: calls, children, waits and signals.

    The children of a large group are a strip with a character for each: ■ succeeded, ✗ failed, ▨ cancelled, ▶ running,
    ◫ waiting, · queued.

    \b
    Examples:
      faultline flow 0198c2e4-5d3a
      faultline flow 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01 --json | jq '.calls[] | select(.outcome == null)'
    """
    from faultline.store.reads import views  # noqa: PLC0415 - late, so that --help is quick

    with opened(dsn) as database:
        found = _flow(database, parse.job_id(database, job_id))
        now = database.run(views.clock())
    if as_json:
        print_json(asdict(found))
        return
    from rich.text import Text  # noqa: PLC0415

    from faultline.cli.printing import screen  # noqa: PLC0415
    from faultline.explain.tree_text import tree  # noqa: PLC0415

    console = screen.console()
    for parent in found.parents[:3]:
        console.print(screen.quiet(f"called by {parent.task} {parent.job_id}, call {parent.number}"), soft_wrap=True)
    if found.flow_id is not None and found.flow_id != found.job_id:
        console.print(screen.quiet(f"of the flow {found.flow_id}"), soft_wrap=True)
    for line in tree(found, now=now, columns=min(console.width, 120)):
        console.print(Text.assemble(*line), soft_wrap=True)
    if found.is_cut:
        console.print(screen.quiet("there is more: show one of its jobs"))


def _flow(database: Database, job_id: UUID) -> Flow:
    from faultline.store.reads import flows, views  # noqa: PLC0415

    record = database.run(views.job(job_id))
    if record is None:
        raise JobNotFound(f"no job {job_id}; {_GONE}")
    jobs, has_more = database.run(flows.tree(job_id))
    of_calls, of_children, of_signals, of_parents = flows.below(job_id, jobs)
    calls, has_more_calls = database.run(of_calls)
    return flows.Flow(
        job_id=job_id,
        flow_id=record.flow_id,
        jobs=flows.named(record, jobs),
        calls=calls,
        children=database.run(of_children),
        signals=database.run(of_signals),
        parents=database.run(of_parents),
        is_cut=has_more or has_more_calls,
    )


def fork(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a job, or its first digits.")],
    before: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="Keep the calls before this one, run it and all later ones. Default: keep all that ended."
        ),
    ] = None,
    args: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="The arguments of the new job; - reads them from standard input. Default: its own."
        ),
    ] = None,
    reason: Why = None,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Begin a new job with the history of another, and print its id. The other job is not changed.

    \b
    Examples:
      faultline fork 0198c2e4-5d3a --reason "the bank is back"
      faultline fork 0198c2e4-5d3a --before 3
      faultline fork 0198c2e4-5d3a --before 1 --args '{"topic": "geese"}'
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick
    from faultline.store import jsontext  # noqa: PLC0415

    given = None if args is None else jsontext.decode(parse.arguments(args))
    with opened(dsn) as database:
        wanted = parse.job_id(database, job_id)
        made = database.run(operate.fork(wanted, before, given, reason=reason, by=operate.this_user()))
    if as_json:
        print_json({"id": made, "forked_from": wanted})
    else:
        print(made)


def signal(
    job_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a job, its first digits, or key:KEY for an idempotency key.")
    ],
    name: Annotated[str, typer.Argument(help="The name that the task receives.")],
    payload: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="What it carries; - reads it from standard input. Default: null.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The same key counts once per job, however often it is sent.")
    ] = None,
    for_call: Annotated[
        str | None,
        typer.Option("--for", metavar="NUMBER", help="Answer this wait only, by its number; refused when that is over."),
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="TEXT", help="Who sends it, for the journal. Default: you.")] = None,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Send a signal to a job. One that waits for it goes on at once; one that does not yet keeps it.

    \b
    Examples:
      faultline signal 0198c2e4-5d3a approval '{"ok": true}'
      faultline signal 0198c2e4-5d3a approval '{"ok": true}' --for 3
      faultline signal key:order:42 paid --key payment-7
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick

    sent = _payload(payload)
    with opened(dsn) as database:
        by_key = job_id.removeprefix(_OF_KEY) if job_id.startswith(_OF_KEY) else None
        doing = operate.signal(
            None if by_key is not None else parse.job_id(database, job_id),
            name,
            sent,
            key=key,
            for_call=for_call,
            by=by or operate.this_user(),
            idempotency_key=by_key,
        )
        awaited = _is_awaited(database, None if by_key is not None else parse.job_id(database, job_id), by_key, name)
        created = database.run(doing)
    if as_json:
        print_json({"created": created})
    elif created:
        print("kept; the job does not wait for it yet" if awaited is False else "sent")
    else:
        print(f"a signal with the key {key} was sent before; nothing was sent")


def _is_awaited(database: Database, job_id: UUID | None, key: str | None, name: str) -> bool | None:
    """Whether the job waits for such a signal. Asked before it is sent: a wait that it answers is soon over.

    None: this login may send signals, but not read what jobs wait for.
    """
    from faultline.store.reads import listing, suspended  # noqa: PLC0415

    try:
        if job_id is None:
            found = database.run(listing.jobs(listing.Wanted(key=key), page_jobs=1)).jobs
            job_id = found[0].id if found else None
        waits = [] if job_id is None else database.run(suspended.awaited([job_id]))
    except PermissionDenied:
        return None
    return any((wait.kind, wait.name) == ("signal", name) for wait in waits)


def _payload(text: str | None) -> Json:
    from faultline.core.errors import UnreadableJson  # noqa: PLC0415
    from faultline.store import jsontext  # noqa: PLC0415

    if text is None:
        return None
    given = sys.stdin.read() if text == "-" else text
    try:
        return jsontext.decode(given)
    except UnreadableJson as error:
        raise ConfigError(
            f"invalid JSON in the payload ({error}); write for example '{{\"ok\": true}}', and text as '\"text\"'"
        ) from None


def waiting(
    kind: Annotated[WaitKind | None, typer.Option(help="Only waits of this kind.")] = None,
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="Only for signals of this name.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="NUMBER", help="Waits per page.")] = 20,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue after this cursor, as printed by the page before.")
    ] = None,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """List what suspended jobs wait for: signals, children, the end of a sleep.

    If there are more, the command for the next page is printed to standard error.

    \b
    Examples:
      faultline waiting --kind signal
      faultline waiting --name approval
      faultline waiting --name approval --json | jq -r .job_id
    """
    from faultline.store.reads import suspended as reads  # noqa: PLC0415
    from faultline.store.reads import views  # noqa: PLC0415 - late, so that --help is quick

    order = reads.order_of("signal" if name is not None else kind)
    behind = None if after is None else parse.cursor(after, order.types)
    with opened(dsn) as database:
        page = database.run(reads.waiting(kind=kind, name=name, page_rows=limit, behind=behind))
        now = database.run(views.clock())
    if as_json:
        for line in page.waiting:
            print_json(asdict(line))
    elif page.waiting:
        from faultline.cli.printing import screen, tables  # noqa: PLC0415

        screen.show(screen.console(), tables.waiting_table(page.waiting, now))
    else:
        print(
            "nothing waits for this" if kind or name else "no flow waits; what limits and budgets hold up: faultline limits"
        )
    if page.behind is not None:
        asked = {"--kind": kind, "--name": name, "--limit": str(limit)}
        # Print no password: the text may go into a log.
        asked |= {"--dsn": None if dsn is None else without_password(dsn)}
        words = [word for option, value in asked.items() if value is not None for word in (option, str(value))]
        words += ["--json"] if as_json else []
        sys.stdout.flush()
        print(
            f"more: {shlex.join(['faultline', 'waiting', *words, '--after', parse.cursor_text(page.behind)])}",
            file=sys.stderr,
        )

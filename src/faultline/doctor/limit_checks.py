"""The doctor's checks of limits: turn what was read into findings. They use no database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.doctor.checks import NOTE, OK, WARNING, WRONG, Finding
from faultline.explain.formatting import number_of, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from faultline.core.limits import LimitRecord
    from faultline.store.reads.groups import QueueUse
    from faultline.store.reads.limit_holders import LimitHolder
    from faultline.store.reads.overview import WorkerLine

#: A claim's own transaction is over in milliseconds.
_IDLE_SECONDS = 2.0
_PREPARED_SECONDS = 60.0
#: Workers apply all events once a minute.
_UNHEARD_SECONDS = 300.0
_NAMES_MAX = 5


def holders(found: Sequence[LimitHolder]) -> Iterator[Finding]:
    for one in found:
        since = span(one.seconds or 0.0)
        if one.kind == "session" and (one.seconds or 0.0) > _IDLE_SECONDS:
            who = f"process {one.name} ({one.application or 'no name'}, login {one.login})"
            doing = "at work" if one.at_work else "idle"
            fact = f"{who} has been {doing} in a transaction for {since} and holds permits of a queue with limits"
            todo = f"that queue starts nothing until it ends: select pg_terminate_backend({one.name})"
            yield Finding("limits", WARNING, fact, todo)
        elif one.kind != "session" and one.holds_limits:
            fact = f"the prepared transaction {one.name} of {one.login}, {since} old, holds permits of a queue with limits"
            todo = f"that queue starts nothing, also after a restart, until you: {_ends(one)}"
            yield Finding("limits", WRONG, fact, todo)
        elif one.kind != "session" and (one.seconds or 0.0) > _PREPARED_SECONDS:
            fact = f"the prepared transaction {one.name} of {one.login} has been open for {since}"
            yield Finding("limits", WARNING, fact, f"it keeps its locks, and vacuum from cleaning up: {_ends(one)}")


def use(uses: Sequence[QueueUse], workers: Sequence[WorkerLine] = ()) -> Iterator[Finding]:
    late = [one for one in uses if one.unheard_events and (one.events_applied_seconds_ago or 0.0) > _UNHEARD_SECONDS]
    for one in late:
        when = span(one.events_applied_seconds_ago or 0.0)
        fact = f"{one.queue}: events of its groups wait to be applied; all were last applied {when} ago"
        yield Finding("limits", WARNING, fact, "workers do it every minute: is one alive? See also who holds permits above")
    full = [one for one in uses if one.full and one.waiting + one.ungrouped]
    for one in full:
        waits = number_of(one.waiting + one.ungrouped, "job waits", "or more jobs wait" if one.at_least else "jobs wait")
        fact = f"{one.queue} is full: {number_of(one.holding, 'permit is', 'permits are')} held, {waits}"
        yield Finding("limits", NOTE, fact, f"as it should be, unless they wait for too long: faultline groups {one.queue}")
    passing = [one for one in uses if one.passes_groups]
    for one in passing:
        jobs = number_of(one.ungrouped, "due job has", "due jobs have")
        fact = f"{one.queue}: {jobs} no group, so the limits of its groups do not hold there"
        todo = 'give each a group where it is enqueued: @app.task(group=…), --group, "group" over HTTP and in SQL'
        yield Finding("limits", WARNING, fact, todo)
    served = {queue for worker in workers for queue in worker.queues}
    unserved = [one.queue for one in uses if one.queue not in served] if workers else []
    if unserved:
        fact = f"no worker serves {', '.join(unserved[:_NAMES_MAX])}{', …' if len(unserved) > _NAMES_MAX else ''}"
        todo = "a misspelt name, or limits that no code has any more: faultline limits reset QUEUE takes away what was set,"
        todo += " app.queue(NAME) without limits, deployed once, what was declared"
        yield Finding("limits", NOTE, f"{fact}, which has limits", todo)
    if not late and not full and not passing and not unserved:
        fact = (
            "no queue has limits" if not uses else f"{number_of(len(uses), 'queue has', 'queues have')} limits, none is full"
        )
        yield Finding("limits", OK, fact)


def orphans(limits: Sequence[LimitRecord]) -> Iterator[Finding]:
    """Limits stay when their declaration is deleted: other programs may count on them."""
    names = sorted({one.queue for one in limits if one.orphaned})
    if names:
        some = f"{', '.join(names[:_NAMES_MAX])}{', …' if len(names) > _NAMES_MAX else ''}"
        fact = f"limits of {some} are in force that no living worker has in its code"
        todo = "if they are no longer wanted, deploy app.queue(NAME) without limits once; it takes them away"
        yield Finding("limits", NOTE, fact, todo)


def _ends(one: LimitHolder) -> str:
    quoted = one.name.replace("'", "''")
    return f"rollback prepared '{quoted}', or commit prepared '{quoted}'"

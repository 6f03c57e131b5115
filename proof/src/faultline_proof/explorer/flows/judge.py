"""What must be true when a scene of flows has ended: nobody waits for what has happened, and nothing is left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.store.database import run_on
from faultline.store.reads import invariants
from faultline_proof.explorer.rules import Wrong

if TYPE_CHECKING:
    from uuid import UUID

    import psycopg

    from faultline_proof.explorer.programs import Scene
    from faultline_proof.explorer.scenarios import Ask, Scenario

#: Longer than the longest pause before a nudge is looked at again, and shorter than any wait of the scenes.
_A_WHILE = "update time_of_the_explorer set since = clock_timestamp(), ahead_before = ahead, ahead = ahead + interval '30 s'"
_ROUNDS = 12
#: Asked of the tables alone, not of the functions that decide who is woken.
_WAITS_FOR_WHAT_HAS_HAPPENED = """
select j.task, c.number, c.kind
from faultline.open_jobs j
join faultline.calls c on c.job_id = j.id and c.awaited and c.ended_at is null
where c.together is not true and j.suspended and j.state = 'queued' and j.next_run_at > faultline.clock()
  and case
    when c.kind = 'signal' then exists (
      select from faultline.signals s
      where s.job_id = j.id and s.name = c.name and s.received_by is null
        and case when s.for_call is null then c.fresh is not true or s.sent_at >= c.begun_at else s.for_call = c.number end
    )
    when c.kind in ('children', 'watch', 'after') then not exists (
      select from faultline.edges e join faultline.open_jobs o on o.id = e.job_id
      where e.call_id = c.id and o.state in ('queued', 'running')
    ) or (c.policy in ('fast', 'cancel') and exists (
      select from faultline.edges e join faultline.open_jobs o on o.id = e.job_id
      where e.call_id = c.id and o.state in ('failed', 'cancelled')
    ))
  end
"""
_LIVE_ON = """
select p.task, o.task
from faultline.open_jobs p
join faultline.calls c on c.job_id = p.id and c.kind = 'children'
join faultline.edges e on e.call_id = c.id
join faultline.open_jobs o on o.id = e.job_id and o.call_id = c.id
where p.state in ('failed', 'cancelled') and o.state in ('queued', 'running')
"""
_LEFT = """
select 'nudges', count(*) from faultline.nudges having count(*) > 0
union all
select 'sweeps', count(*) from faultline.sweeps having count(*) > 0
"""
_FLOW_TABLES = ("nudges", "sweeps", "signals", "edges", "calls", "flows", "streams")
_LIMIT_TABLES = (
    "budgets",
    "group_events",
    "groups",
    "limited_queues",
    "limits",
    "queues",
    "unique_keys",
    "ticks",
    "schedules",
)
_TABLES = (*_FLOW_TABLES, *_LIMIT_TABLES, "steps", "keys", "journal", "open_jobs", "ledger")
#: They look at definitions, and here these are the explorer's.
_DEFINITIONS = ("times_come_from_the_server_clock", "the_guards_are_in_place")


def end(watcher: psycopg.Connection, scenario: Scenario, scene: Scene) -> None:
    """Do what workers would go on to do, then look at everything. Raises `Wrong`."""

    def ask(query: str, *params: Any) -> list[tuple[Any, ...]]:
        cursor = watcher.execute(query.encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    for step in scene.unsent:
        ask(step.statement.sql, *step.statement.params)
    _settle(scene, ask)
    faults = scenario.judge(scene, ask) if scenario.judge else []
    for task, number, kind in ask(_WAITS_FOR_WHAT_HAS_HAPPENED):
        faults.append(f"{task} waits in call {number}, {kind}, for what has happened")
    for parent, child in ask(_LIVE_ON):
        faults.append(f"{child} lives on, though {parent} has ended badly")
    for table, left in ask(_LEFT):
        faults.append(f"{left} {table} are left")
    for one in invariants.violations(lambda one: run_on(watcher, one), without=_DEFINITIONS):
        faults.append(f"the invariant {one.invariant} does not hold: {one.rows}")
    if faults:
        raise Wrong("in the end " + "; ".join(faults))
    _clean(watcher)


def _settle(scene: Scene, ask: Ask) -> None:
    """Resolve and sweep, as every worker does again and again, from where the resolver of the scene was."""
    ask(_A_WHILE)
    cursor = scene.notes.get("cursor")
    for _ in range(_ROUNDS):
        ((_, _, cursor),) = ask("select woken, left_over, next_cursor::text from faultline.resolve(100, %s::jsonb)", cursor)
        ask("select faultline.sweep()")
        if not ask(_LEFT):
            return


def _clean(watcher: psycopg.Connection) -> None:
    """Take everything away, past the guards: the next order begins with nothing."""
    with watcher.transaction():
        watcher.execute("set local session_replication_role = replica")
        for table in _TABLES:
            watcher.execute(f"delete from faultline.{table}".encode())
        watcher.execute("delete from effects")
        watcher.execute("delete from changes")
        watcher.execute("delete from seen")


# What judges ask


def state(ask: Ask, job_id: UUID) -> str:
    """The state of a job; `waiting` if it has given its lease back to wait and is not due, `due` if it may be claimed."""
    found = ask("select state, suspended, next_run_at <= faultline.clock() from faultline.open_jobs where id = %s", job_id)
    if not found:
        return "succeeded" if ask("select 1 from faultline.ledger where job_id = %s", job_id) else "gone"
    ((name, suspended, due),) = found
    if name != "queued":
        return str(name)
    return "due" if due else "waiting" if suspended else "delayed"


def expect(ask: Ask, job_id: UUID, *wanted: str) -> list[str]:
    found = state(ask, job_id)
    return [] if found in wanted else [f"the job is {found}, and should be {' or '.join(wanted)}"]

"""A verb costs the same in a session that began when the tables were empty, and after they were. Counted in rows read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from faultline.core.model import Bound, Submission
from faultline.store import verbs
from faultline.store.reads import views
from faultline.store.verbs import budget
from faultline_proof.probes.flow_plans import FLOW_CALLS, rows_read
from faultline_proof.probes.flow_stage import ANSWER, Resolver, spawn, suspend
from faultline_proof.probes.probe import PROBES, Probe, expect
from faultline_proof.probes.writes import BATCH_VERBS

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease
    from faultline.store.statement import Statement
    from faultline_proof.sessions import Session, Sessions

#: So many rows come into every table once the session has made its plans,
_BACKLOG = 1_000
#: and so many of them a verb for one job may look at.
_FEW = 100
#: These stories do more than one call: they end a parent with two children, or make two jobs wait for each other.
_FEW_FOR = dict.fromkeys(("reopen_flows", "prune_flow", "cancel_deadlocked_jobs", "has_failed"), 300)
#: A batch is worth turning a join round for, if the table is taken for empty.
_BATCH = 200
#: PostgreSQL makes a new plan for each of the first five calls, and may then keep one.
_CALLS_BEFORE = 6


_SLEEP = '[{"number": "1", "kind": "sleep", "name": "sleep", "seconds": 3600}]'


def _expire(q: Session, lease: Lease) -> Lease:
    q.execute("update faultline.open_jobs set lease_expires_at = created_at where id = %s", lease.job_id)
    return lease


def _suspend(q: Session, lease: Lease) -> None:
    spawn(q, lease, 2, policy="fast")
    suspend(q, lease)


def _end_child(q: Session, lease: Lease, verb: str) -> None:
    _suspend(q, lease)
    child = q.claim_one(queue="children")
    q.complete(child) if verb == "complete" else q.fail(child, then="fail")
    Resolver(q).woken()


def _answer(q: Session, lease: Lease) -> None:
    suspend(q, lease, ANSWER)
    q.run(verbs.signal(lease.job_id, "answer", 1))
    Resolver(q).woken()


def _sweep(q: Session, lease: Lease) -> None:
    spawn(q, lease, 2)
    q.fail(lease, then="fail")
    q.run(verbs.sweep())


def _sweep_and_retry(q: Session, lease: Lease) -> None:
    _sweep(q, lease)
    q.run(verbs.retry(lease.job_id))


def _take(q: Session, lease: Lease) -> None:
    q.run(budget.declare_budget("b", {"rate": 1}))
    q.run(budget.take_budget(lease, "b", 1, 1))


def _put_unique(q: Session, key: str = "u") -> None:
    job = f'{{"task": "t", "priority": -200, "unique": {{"key": "{key}"}}}}'
    q.execute("select faultline.enqueue_many(%s::text)", f"[{job}]")


def _supersede(q: Session, _: Lease) -> None:
    """A job fails that was enqueued again while it ran."""
    _put_unique(q, "again")
    running = q.claim_one()
    _put_unique(q, "again")
    q.fail(running)
    expect("what became of it", q.state(running.job_id), "cancelled")


#: Each call, and what else comes in beside waiting and running jobs.
_CALLS: dict[str, tuple[Callable[[Session, Lease], Any], tuple[str, ...]]] = {
    "complete": (lambda q, lease: q.complete(lease), ()),
    "renew": (lambda q, lease: q.renew(lease), ()),
    "refuse": (lambda q, lease: (q.release(lease, delays=[3600]), q.renew(lease)), ("ledger",)),
    "fail": (lambda q, lease: q.fail(lease, delay=3600), ()),
    "release": (lambda q, lease: q.release(lease, delays=[3600]), ()),
    "record_start": (lambda q, lease: q.record_start(lease), ()),
    "fence": (lambda q, lease: q.fence(lease), ()),
    "record_refusal": (lambda q, lease: q.run(verbs.record_refusal(_expire(q, lease))), ()),
    "step": (lambda q, lease: q.step(lease), ("steps",)),
    "recall": (lambda q, lease: q.run(verbs.recall(lease, "s")), ("steps",)),
    "progress": (lambda q, lease: q.progress(lease), ()),
    "take_budget": (_take, ()),
    "cancel": (lambda q, lease: q.run(verbs.cancel(lease.job_id)), ("ledger",)),
    "retry": (lambda q, lease: (q.fail(lease, then="fail"), q.run(verbs.retry(lease.job_id))), ("ledger",)),
    "resolve_known": (lambda q, lease: q.run(verbs.enqueue_many([Submission("t", id=lease.job_id)])), ("ledger", "keys")),
    "delete_already_completed": (lambda q, lease: (q.complete(lease), q.enqueue(id=lease.job_id)), ("ledger",)),
    "reap": (lambda q, lease: (_expire(q, lease), q.reap()), ()),
    "first_expired": (lambda q, _: q.run(verbs.first_expired()), ()),
    "claim": (lambda q, _: q.claim(3), ()),
    "due": (lambda q, _: q.run(views.due(["default"])), ()),
    "journal": (lambda q, lease: q.journal(lease.job_id), ("journal",)),
    "roll_up": (lambda q, _: q.run(verbs.roll_up()), ("tallies",)),
    "suspend": (_suspend, ("calls", "edges", "signals")),
    "can_resume": (lambda q, lease: _end_child(q, lease, "complete"), ("calls", "edges", "signals", "ledger")),
    "has_failed": (lambda q, lease: _end_child(q, lease, "fail"), ("calls", "edges", "ledger")),
    "kept_signal": (_answer, ("calls", "edges", "signals")),
    "sweep": (_sweep, ("calls", "edges", "ledger")),
    "reopen_flows": (_sweep_and_retry, ("calls", "edges", "ledger")),
    "insert_unique_jobs": (lambda q, _: _put_unique(q), ("unique_keys",)),
    "supersede": (_supersede, ("unique_keys",)),
    **FLOW_CALLS,
}

#: Rows for each table, straight into it, past guards and statistics.
_JOBS = (
    "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue,"
    " task, args, state, {more}) select gen_random_uuid(), now(), now() + n * interval '1 microsecond', 30, 0, 5, true,"
    " 'default', 't', '{{}}', {values} from generate_series(1, %s) n"
)
_ROWS_FOR = {
    "waiting": _JOBS.format(more="finished_at", values="'queued', null"),
    "failed": _JOBS.format(more="finished_at", values="'failed', now()"),
    "running": _JOBS.format(
        more="lease_owner, lease_expires_at, fencing_token, attempt",
        values="'running', 'x/1', now() + interval '1 hour', 1, 1",
    ),
    "ledger": "insert into faultline.ledger select gen_random_uuid(), 1, now(), now(), now(), 0, 1, 5, 'w/1', 'default',"
    " 't', null, '{}', null from generate_series(1, %s)",
    "steps": "insert into faultline.steps select gen_random_uuid(), 's', 1, now(), null from generate_series(1, %s)",
    "journal": "insert into faultline.journal (at, job_id, event) select now(), gen_random_uuid(), 'retried'"
    " from generate_series(1, %s)",
    "tallies": "insert into faultline.tallies (queue, minute, worker) select 'default', now() - n * interval '1 minute', ''"
    " from generate_series(61, %s) n",
    "calls": "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, awaited)"
    " select gen_random_uuid(), '1', 'children', 'child', 1, now(), true from generate_series(1, %s)",
    "history": "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, ended_at, outcome)"
    " select gen_random_uuid(), '1', 'children', 'child', 1, now(), now(), 'done' from generate_series(1, %s)",
    "edges": "insert into faultline.edges select -n, 0, gen_random_uuid() from generate_series(1, %s) n",
    "signals": "insert into faultline.signals (job_id, name, sent_at) select gen_random_uuid(), 'answer', now()"
    " from generate_series(1, %s)",
    "streams": "insert into faultline.streams select gen_random_uuid(), 'tokens', 1, 0, '[1]', 3, 0, '{}', now()"
    " from generate_series(1, %s)",
    "unique_keys": "insert into faultline.unique_keys (queue, key, task, job_id, at)"
    " select 'default', n::text, 't', gen_random_uuid(), now() from generate_series(1, %s) n",
    "keys": "insert into faultline.keys select n::text, gen_random_uuid(), '', now() from generate_series(1, %s) n",
}


def _reads_few_rows(sessions: Sessions, *, name: str, begin: Callable[..., None]) -> None:
    q, (call, more) = sessions.open(), _CALLS[name]
    begin(sessions, *more)
    with q.unsaved():
        for _ in range(_CALLS_BEFORE):
            call(q, q.new_lease())
    for what in ("waiting", "running", *more):
        sessions.hand.execute(_ROWS_FOR[what], _BACKLOG)
    with q.unsaved():
        lease = q.new_lease()
        before = rows_read(q)
        call(q, lease)
        read = rows_read(q) - before
    if read > _FEW_FOR.get(name, _FEW):
        raise AssertionError(f"{name} read {read} rows beside a backlog of {_BACKLOG}")


def _reads_running_jobs_only(sessions: Sessions, *, begin: Callable[..., None]) -> None:
    q = sessions.open()
    begin(sessions)
    with q.unsaved():
        for _ in range(_CALLS_BEFORE):
            q.run(verbs.recover())
    sessions.hand.execute(_ROWS_FOR["waiting"], _BACKLOG)
    with q.unsaved():
        q.new_lease(priority=-1)
        before = rows_read(q)
        expect("jobs queued again", q.run(verbs.recover())[2], 1)
        read = rows_read(q) - before
    if read > _FEW:
        raise AssertionError(f"recover read {read} rows beside a backlog of {_BACKLOG}")


#: What is done with a batch of leases.
_BATCHES: dict[str, Callable[..., Any]] = {
    **BATCH_VERBS,
    "refuse": lambda q, *leases: (q.complete(*leases), q.renew(*leases), q.complete(*leases)),
    "resolve_known": lambda q, *leases: q.run(verbs.enqueue_many([Submission("t", id=one.job_id) for one in leases])),
    "claim": lambda q, *_: q.claim(_BATCH),
    "suspend": lambda q, *leases: q.run(verbs.suspend(leases, [_SLEEP] * len(leases))),
    "reap": lambda q, *leases: (_expire(q, leases[0]), q.reap()),
}


def _reads_few_rows_for_a_batch(sessions: Sessions, *, name: str) -> None:
    q = sessions.open()
    _begin_emptied(sessions)
    for what in ("waiting", "running"):
        sessions.hand.execute(_ROWS_FOR[what], _BACKLOG)
    with q.unsaved():
        q.run(verbs.enqueue_many([Submission("t", priority=-100)] * _BATCH))
        leases = q.claim(_BATCH)
        before = rows_read(q)
        _BATCHES[name](q, *leases)
        read = rows_read(q) - before
    if read > 12 * _BATCH:
        raise AssertionError(f"{name} of {_BATCH} read {read} rows beside a backlog of {2 * _BACKLOG}")


def _reads_nothing_below_its_bound(sessions: Sessions, *, name: str) -> None:
    """Nor the dead rows there, which stay while somebody holds an old snapshot."""
    q, holder = sessions.open(), sessions.open()
    sessions.hand.execute(_ROWS_FOR["running"].replace("interval '1 hour'", "interval '-1 minute'"), _BACKLOG)
    holder.begin("repeatable read")
    holder.execute("select from faultline.open_jobs")
    sessions.hand.execute("delete from faultline.open_jobs")
    bound = q.value("select now() - interval '30 seconds'")
    call: Statement[Any] = verbs.reap(lower_bound=bound) if name == "reap" else verbs.first_expired(bound)
    with q.unsaved():
        before = rows_read(q)
        q.run(call)
        read = rows_read(q) - before
    if read > _FEW:
        raise AssertionError(f"{name} read {read} rows below its bound")


def _looks_at_nothing_below_its_bounds(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    sessions.hand.execute(_ROWS_FOR["waiting"], _BACKLOG)
    holder.begin("repeatable read")
    holder.execute("select from faultline.open_jobs")
    priorities = [row[0] for row in q.execute("select distinct priority from faultline.open_jobs")]
    sessions.hand.execute("delete from faultline.open_jobs")
    bounds = [Bound(priority, q.value("select now() + interval '2 hours'")) for priority in priorities]
    with q.unsaved():
        before = rows_read(q)
        q.run(views.due(["default"], {"default": bounds}))
        read = rows_read(q) - before
    if read > _FEW:
        raise AssertionError(f"due read {read} rows below its bounds")


def _steps_over_no_delayed_jobs(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.hand.execute(_ROWS_FOR["waiting"].replace("1 microsecond", "1 hour"), _BACKLOG)
    sessions.hand.execute("vacuum analyze faultline.open_jobs")
    with q.unsaved():
        before = rows_read(q)
        expect("due", q.run(views.due(["default"])), [])
        read = rows_read(q) - before
    if read > _FEW:
        raise AssertionError(f"due read {read} rows that are not due")


def _table_of(what: str) -> str:
    return "calls" if what == "history" else what


def _begin_small(sessions: Sessions, *rows: str) -> None:
    """Tables as they are on the first day, with statistics that say so."""
    named = ", ".join(f"faultline.{_table_of(what)}" for what in ("open_jobs", *rows))
    sessions.hand.execute(f"truncate {named}")
    # Entries of dead rows that stories before this one left are read too.
    sessions.hand.execute("vacuum faultline.flows, faultline.calls, faultline.signals, faultline.nudges, faultline.journal")
    sessions.hand.execute("select faultline.enqueue('t')")
    sessions.hand.execute(f"vacuum analyze {named}")


def _begin_emptied(sessions: Sessions, *rows: str) -> None:
    """Tables that were full and are empty, with statistics that say: many pages, no rows. Believed, any scan is cheap."""
    _begin_small(sessions, *rows)
    for what in ("waiting", *rows):
        sessions.hand.execute(_ROWS_FOR[what], _BACKLOG)
    for table in ("open_jobs", *map(_table_of, rows)):
        sessions.hand.execute(f"delete from faultline.{table}")
        sessions.hand.execute(f"vacuum analyze faultline.{table}")


#: What can be pruned, its table, and the index that knows the age of whole ranges of pages, if it has one.
_PRUNED = {
    "ledger": ("ledger", "ledger_finished"),
    "failed": ("open_jobs", None),
    "journal": ("journal", "journal_at"),
    "keys": ("keys", "keys_created"),
}
_ROWS = 12_000
#: The newest pages of a table are not in such an index yet, so they are read.
_LAST_RANGE = 6_000


def _prunes_without_reading_all(sessions: Sessions, *, what: str) -> None:
    q, (table, index) = sessions.open(), _PRUNED[what]
    prune = verbs.prune(what, older_than_seconds=3600)
    _begin_small(sessions, table)
    for _ in range(_CALLS_BEFORE):
        q.run(prune)
    sessions.hand.execute(_ROWS_FOR[what], _ROWS)
    if index is not None:
        sessions.hand.execute("select brin_summarize_new_values(to_regclass(%s))", f"faultline.{index}")
    with q.unsaved():
        before = rows_read(q)
        expect("pruned", q.run(prune), 0)
        read = rows_read(q) - before
    if read > _LAST_RANGE:
        raise AssertionError(f"prune {what} read {read} rows, none of them old")


_WITH_AGES = ("ledger", "journal", "keys")


def _prunes_where_old_rows_lay_once(sessions: Sessions, *, what: str) -> None:
    q = sessions.open()
    prune = verbs.prune(what, older_than_seconds=3600, max_rows=_ROWS)
    _begin_small(sessions, what)
    old = _ROWS_FOR[what].replace("now()", "now() - interval '2 hours'").replace(" n::text,", " 'old' || n,")
    sessions.hand.execute(old, _ROWS)
    # A young row behind them, so that vacuum keeps their pages.
    sessions.hand.execute(_ROWS_FOR[what].replace(" n::text,", " 'last',"), 1)
    sessions.hand.execute(f"vacuum faultline.{what}")
    expect("old rows pruned", q.run(prune), _ROWS)
    sessions.hand.execute(f"vacuum faultline.{what}")
    sessions.hand.execute(_ROWS_FOR[what], _ROWS)
    with q.unsaved():
        before = rows_read(q)
        expect("pruned", q.run(prune), 0)
        read = rows_read(q) - before
    if read > _LAST_RANGE:
        raise AssertionError(f"prune {what} read {read} rows where old ones had been")


PROBES.extend(
    Probe(f"{name} reads few rows {when}", frozenset(("plan", name)), partial(_reads_few_rows, name=name, begin=begin))
    for name in _CALLS
    for when, begin in (
        ("in a session older than the backlog", _begin_small),
        ("where all had been done before", _begin_emptied),
    )
)
PROBES.extend(
    Probe(
        f"recover reads running jobs only {when}",
        frozenset(("plan", "recover")),
        partial(_reads_running_jobs_only, begin=begin),
    )
    for when, begin in (
        ("in a session older than the backlog", _begin_small),
        ("where all had been done before", _begin_emptied),
    )
)
PROBES.extend(
    Probe(
        f"{name} of a batch reads few rows where all had been done before",
        frozenset(("plan", name)),
        partial(_reads_few_rows_for_a_batch, name=name),
    )
    for name in _BATCHES
)
PROBES.extend(
    Probe(
        f"prune {what} does not read all that is young",
        frozenset(("plan", "prune", f"prune_{what}", _PRUNED[what][0])),
        play,
    )
    for what, play in ((what, partial(_prunes_without_reading_all, what=what)) for what in _PRUNED)
)
PROBES.extend(
    Probe(
        f"{name} reads nothing below its bound",
        frozenset(("plan", name)),
        partial(_reads_nothing_below_its_bound, name=name),
    )
    for name in ("reap", "first_expired")
)
PROBES.append(Probe("due reads nothing below its bounds", frozenset(("plan", "due")), _looks_at_nothing_below_its_bounds))
PROBES.append(Probe("due steps over no delayed jobs", frozenset(("plan", "due")), _steps_over_no_delayed_jobs))
PROBES.extend(
    Probe(
        f"prune {what} does not read all that lies where old rows lay",
        frozenset(("plan", "prune", f"prune_{what}", what)),
        partial(_prunes_where_old_rows_lay_once, what=what),
    )
    for what in _WITH_AGES
)

"""What lists show and what is pruned is found by an index, whatever else there is. Counted in rows read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.reads import listing, suspended
from faultline.store.verbs import flow
from faultline_proof.probes.flow_plans import rows_read
from faultline_proof.probes.limit_stage import put
from faultline_proof.probes.probe import PROBES, Probe, expect, probe

if TYPE_CHECKING:
    from faultline.store.statement import Statement
    from faultline_proof.sessions import Session, Sessions

_BACKLOG = 2_000
_FEW = 150


def _reads_few(q: Session, what: str, statement: Statement[Any]) -> Any:
    with q.unsaved():
        before = rows_read(q)
        answer = q.run(statement)
        read = rows_read(q) - before
    if read > _FEW:
        raise AssertionError(f"{what} read {read} rows beside {_BACKLOG} others")
    return answer


@probe("plan", "calls")
def the_inbox_of_a_signal_reads_those_that_wait_for_it(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.hand.execute(
        "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, awaited)"
        " select gen_random_uuid(), '1', 'signal', 'other', 1, now(), true from generate_series(1, %s)",
        _BACKLOG,
    )
    sessions.hand.execute("vacuum analyze faultline.calls")
    lease = q.new_lease()
    q.run(flow.suspend([lease], ['[{"number": "1", "kind": "signal", "name": "go", "seconds": 3600}]']))
    page = _reads_few(q, "the inbox of one signal", suspended.waiting(name="go"))
    expect("who waits for it", [call.job_id for call in page.waiting], [lease.job_id])


@probe("plan", "open_jobs")
def a_list_of_a_groups_jobs_reads_those_of_the_group(sessions: Sessions) -> None:
    q = sessions.open()
    put(q, "others", _BACKLOG)
    wanted = put(q, "mine", 1)
    sessions.hand.execute("vacuum analyze faultline.open_jobs")
    page = _reads_few(q, "a list of one group", listing.jobs(listing.Wanted(group="mine"), page_jobs=50))
    expect("listed", [job.id for job in page.jobs], wanted)


#: Young rows of what is pruned by its age.
_YOUNG = {
    "unique_keys": "insert into faultline.unique_keys (queue, key, task, job_id, at)"
    " select 'default', n::text, 't', gen_random_uuid(), faultline.clock() from generate_series(1, %s) n",
    "ticks": "insert into faultline.ticks (schedule_id, at, kind, outcome, decided_at) select 1, now() + n * interval"
    " '1 minute', 'tick', 'skipped', faultline.clock() from generate_series(1, %s) n",
}


def _prunes_what_is_old(sessions: Sessions, *, what: str) -> None:
    q = sessions.open()
    sessions.hand.execute(_YOUNG[what], _BACKLOG)
    sessions.hand.execute(f"vacuum analyze faultline.{what}")
    # A plan for any age reads a table of this size as a whole, if it may.
    q.execute("set enable_seqscan = off")
    q.execute("discard plans")
    pruned = _reads_few(q, f"prune {what}", verbs.prune(what, older_than_seconds=3600, max_rows=10))
    q.execute("reset enable_seqscan")
    expect("pruned", pruned, 0)


PROBES.extend(
    Probe(
        f"prune {what} reads what is old",
        frozenset(("plan", "prune", f"prune_{what}", what)),
        partial(_prunes_what_is_old, what=what),
    )
    for what in _YOUNG
)


@probe("plan", "sweeps")
def prune_of_a_flow_does_not_read_the_sweeps_of_others(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(flow.spawn(lease, "1", [Submission("t", delay_seconds=3600)], name="t", digest=None))
    q.fail(lease, then="fail")
    q.run(flow.sweep())
    sessions.hand.execute(
        "insert into faultline.sweeps (job_id) select gen_random_uuid() from generate_series(1, %s)", _BACKLOG
    )
    sessions.hand.execute("vacuum analyze faultline.sweeps")
    sessions.hand.execute("vacuum analyze faultline.ledger")
    expect("pruned", _reads_few(q, "prune flows", verbs.prune("flows", older_than_seconds=0)), 2)

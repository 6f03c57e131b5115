"""Races: of several waits the one that was over first ends, by the record of the database, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.store import verbs
from faultline_proof.probes.flow_calls import is_told
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions


def _sleep(number: str, seconds: float | None = None) -> dict[str, Any]:
    return {"number": number, "kind": "sleep", "name": "sleep", "seconds": seconds}


def _signal(number: str, name: str = "go", **words: Any) -> dict[str, Any]:
    return {"number": number, "kind": "signal", "name": name, **words}


def _children(number: str) -> dict[str, Any]:
    return {"number": number, "kind": "children", "name": "child", "digest": "d"}


def _first(q: Session, lease: Lease, *waits: dict[str, Any]) -> tuple[str | None, str, Any]:
    found = q.run(verbs.first_over(lease, waits))
    return found.number, found.status, found.result


def _spawn(q: Session, lease: Lease, number: str, count: int, **words: Any) -> list[Lease]:
    jobs = [Submission("child", queue="children")] * count
    q.run(verbs.spawn(lease, number, jobs, name="child", digest="d", **words))
    return [q.claim_one(queue="children") for _ in range(count)]


def _ago(q: Session, lease: Lease, number: str, seconds: float) -> None:
    """Its time was over so long ago."""
    q.execute(
        "update faultline.calls set until = faultline.clock() - make_interval(secs => %s) where job_id = %s and number = %s",
        seconds, lease.job_id, number,
    )  # fmt: skip


@probe("first_over", "over_at", "calls", "insert_or_find_call", "end_wait")
def of_sleeps_and_signals_what_was_first_ends_and_nothing_else(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    waits = [_sleep("1", 60), _sleep("2", 60), _signal("3", fresh=True), _signal("4", "x", seconds=60)]
    q.run(verbs.signal(lease.job_id, "go", "too early"))
    expect("nothing is over", _first(q, lease, *waits), (None, "none", None))
    left = q.run(verbs.first_over(lease, waits)).seconds_left
    expect("the next time", round(left or 0, -1), 60)
    until = "select until from faultline.calls where job_id = %s and number = %s"
    first = q.value(until, lease.job_id, "1")
    expect("no limit", q.value(until, lease.job_id, "3"), None)
    expect("with another time", _first(q, lease, _sleep("1", 600)), (None, "none", None))
    expect("it keeps its time", q.value(until, lease.job_id, "1"), first)
    expect("its flow", q.value("select flow_id from faultline.open_jobs where id = %s", lease.job_id), lease.job_id)
    q.run(verbs.signal(lease.job_id, "go", "yes"))
    _ago(q, lease, "1", 30)
    _ago(q, lease, "2", 90)
    expect("the longest ago", _first(q, lease, *waits), ("2", "done", None))
    expect("sent again", _first(q, lease, *waits), ("2", "done", None))
    expect("of the rest", _first(q, lease, waits[2], waits[0]), ("1", "done", None))
    expect("then the signal", _first(q, lease, waits[2], waits[3]), ("3", "received", "yes"))
    expect("that once", _first(q, lease, _signal("5")), ("5", "received", "too early"))
    expect("and no more", _first(q, lease, _signal("6")), (None, "none", None))
    outcomes = "select number, outcome, awaited, ended_at is not null from faultline.calls where job_id = %s order by number"
    expect("recorded", [row[:2] for row in q.execute(outcomes, lease.job_id)], [
        ("1", "done"), ("2", "done"), ("3", "done"), ("4", None), ("5", "done"), ("6", None)
    ])  # fmt: skip
    expect("broken", q.broken_invariants(), [])


@probe("first_over", "over_at", "end_wait")
def a_timeout_counts_at_its_time_and_leaves_what_came_later(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    waits = [_signal("1", seconds=60), _signal("2", "other")]
    expect("nothing is over", _first(q, lease, *waits), (None, "none", None))
    q.run(verbs.signal(lease.job_id, "other", "yes"))
    q.run(verbs.signal(lease.job_id, "go", "late"))
    _ago(q, lease, "1", 30)
    expect("the timeout", _first(q, lease, *waits[::-1]), ("1", "timeout", None))
    expect("what came later is kept", _first(q, lease, _signal("3")), ("3", "received", "late"))


@probe("first_over", "insert_or_find_call", "end_wait")
def what_has_ended_a_race_stays_what_ended_it(sessions: Sessions) -> None:
    """Although by then a signal is there that was sent before, in a transaction that went on."""
    q, sender = sessions.open(), sessions.open()
    lease = q.new_lease()
    waits = [_signal("1"), _sleep("2", 0)]
    sender.begin()
    sender.run(verbs.signal(lease.job_id, "go", "yes"))
    expect("the sleep", _first(q, lease, *waits), ("2", "done", None))
    sender.commit()
    expect("sent again", _first(q, lease, *waits), ("2", "done", None))
    expect("what came is kept", _first(q, lease, _signal("3")), ("3", "received", "yes"))


@probe("first_over")
def of_equal_moments_the_first_ends(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    moment = "2026-01-01T00:00:00Z"
    waits = [{**_sleep(number), "until": moment} for number in ("2", "1")]
    expect("the first", _first(q, lease, *waits), ("2", "done", None))


@probe("first_over", "over_at", "collect_outcomes")
def jobs_count_from_when_the_last_had_ended_or_the_first_had_failed(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    taken: dict[str, Any] = {"failed": {}, "results": {}}
    two, one = _spawn(q, lease, "1", 2), _spawn(q, lease, "2", 1)
    q.complete(two[0])
    expect("one is open", _first(q, lease, _children("1")), (None, "none", None))
    q.complete(one[0])
    q.complete(two[1])
    expect("the last counts", _first(q, lease, _children("1"), _children("2")), ("2", "taken", taken))
    expect("then the other", _first(q, lease, _children("1"), _sleep("9", 60)), ("1", "taken", taken))
    slow, fast = _spawn(q, lease, "3", 2), _spawn(q, lease, "4", 2, policy="fast")
    q.fail(slow[0], then="fail")
    expect("it waits for all", _first(q, lease, _children("3"), _children("4")), (None, "none", None))
    q.fail(fast[0], then="fail")
    number, status, _ = _first(q, lease, _children("3"), _children("4"))
    expect("it ends at the first failure", (number, status), ("4", "taken"))
    q.run(verbs.spawn(lease, "5", [], name="child", digest="d"))
    expect("without jobs", _first(q, lease, _children("5")), ("5", "taken", taken))
    q.run(verbs.spawn(lease, "6", [Submission("child", queue="children")], name="child", digest="d", total=2))
    q.complete(q.claim_one(queue="children"))
    expect("half of them", _first(q, lease, _children("6")), (None, "none", None))
    (gone,) = _spawn(q, lease, "7", 1)
    q.complete(gone)
    q.begin()
    q.execute("select faultline.set_current_verb('prune')")
    q.execute("delete from faultline.ledger where job_id = %s", gone.job_id)
    q.commit()
    expect("pruned", _first(q, lease, _children("7"))[:2], ("7", "taken"))


@probe("first_over", "over_at")
def a_step_counts_from_when_it_ended(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    step = {"number": "1", "kind": "step", "name": "s"}
    expect("asleep", _first(q, lease, _sleep("2", 60)), (None, "none", None))
    q.run(verbs.record(lease, [{**step, "outcome": "done", "result": 5}]))
    expect("the step", _first(q, lease, step, _sleep("2")), ("1", "done", None))
    q.execute("update faultline.calls set until = faultline.clock() where job_id = %s and number = '2'", lease.job_id)
    expect("the step ended before", _first(q, lease, _sleep("2"), step), ("1", "done", None))
    _ago(q, lease, "2", 30)
    expect("the sleep was over before", _first(q, lease, step, _sleep("2")), ("2", "done", None))
    failed = {**step, "number": "3"}
    expect("one that is not on record", _first(q, lease, failed, _sleep("4", 60)), ("3", "done", None))


@probe("first_over", "insert_or_find_call")
def a_race_refuses_what_makes_no_sense(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    with refused(q, "FL005", "cannot wait for"):
        _first(q, lease, _sleep("1", -1))
    with refused(q, "FL005", "JSON array"):
        q.execute("select faultline.first_over(%s, %s, %s, '{}')", lease.job_id, lease.fencing_token, lease.owner)
    _first(q, lease, _sleep("1", 60))
    other = verbs.first_over(lease, [_signal("1")])
    expect("another call", is_told(q, other), wanted=True)


@probe("first_over", "reopen_flows", "insert_or_find_call")
def a_signal_that_a_retry_has_opened_gets_a_new_time(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    expect("over at once", _first(q, lease, _signal("1", seconds=0)), ("1", "timeout", None))
    q.run(verbs.record(lease, [{"number": "1", "kind": "signal", "name": "go", "error": "it did not come"}]))
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))
    again = q.claim_one()
    expect("waits again", _first(q, again, _signal("1", seconds=60)), (None, "none", None))
    until = "select until is not null from faultline.calls where job_id = %s and number = '1'"
    expect("its time", q.value(until, lease.job_id), wanted=True)

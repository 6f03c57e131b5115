"""The history of a program: what is recorded once, by whom, and what a later run reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.errors import JobRejected, StaleLease
from faultline.core.model import Submission, Unwritten
from faultline.store import verbs
from faultline.store.translation import is_about_the_program
from faultline_proof.probes.probe import expect, probe, reasons, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease
    from faultline.store.statement import Statement
    from faultline_proof.sessions import Session, Sessions


def call(number: str = "1", kind: str = "step", name: str = "s", **fields: Any) -> dict[str, Any]:
    return {"number": number, "kind": kind, "name": name, "digest": "d", **fields}


def outcomes_of(q: Session, lease: Lease) -> list[tuple[Any, ...]]:
    return [(known.outcome, known.result, known.error) for known in q.run(verbs.history(lease.job_id))]


@probe("record", "history", "calls", "join_flow")
def what_a_program_called_is_read_in_its_order_and_makes_the_job_a_flow(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    numbers = ["10", "2", "1.10", "1", "1.2"]
    calls = [call(number, outcome="done", result={"n": number}, tries=1) for number in numbers]
    expect("recorded", q.run(verbs.record(lease, calls)), Unwritten())
    found = q.run(verbs.history(lease.job_id))
    expect("the order", [known.number for known in found], ["1", "1.2", "1.10", "2", "10"])
    expect("results", [known.result["n"] for known in found], ["1", "1.2", "1.10", "2", "10"])
    expect("tries", [known.tries for known in found], [1] * 5)
    expect("its flow", q.value("select flow_id from faultline.open_jobs"), lease.job_id)
    expect("the flows", q.execute("select id from faultline.flows"), [(lease.job_id,)])
    expect("written by", q.execute("select distinct fencing_token from faultline.calls"), [(lease.fencing_token,)])
    expect("broken", q.broken_invariants(), [])


@probe("record", "calls", "same_call")
def a_call_that_has_ended_never_changes(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(verbs.record(lease, [call(), call("2", outcome="failed", error="boom")]))
    q.run(verbs.record(lease, [call(outcome="done", result=1)]))
    for outcome in ("done", "failed", "closed", None):
        q.run(verbs.record(lease, [call(outcome=outcome, result=2), call("2", outcome=outcome, result=3)]))
    expect("the history", outcomes_of(q, lease), [("done", 1, None), ("failed", None, "boom")])
    with refused(q, "FL005", "the program has changed", "call 1 was step", 'is step "other" now'):
        q.run(verbs.record(lease, [call(name="other", outcome="done")]))
    with refused(q, "FL005", "the program has changed", 'call 1 was step "s" and is sleep'):
        q.run(verbs.record(lease, [call(kind="sleep", outcome="done")]))
    with refused(q, "FL005", "the program has changed", "other arguments"):
        q.run(verbs.record(lease, [{**call(outcome="done"), "digest": "e"}]))


def is_told(q: Session, statement: Statement[Any]) -> bool:
    """Whether a refusal says that the program has changed, other than by its words."""
    try:
        with q.connection.transaction():
            q.run(statement)
    except JobRejected as error:
        return is_about_the_program(error)
    raise AssertionError("it was not refused")


@probe("record", "spawn", "same_call", "same_spawn")
def a_changed_programis_told_from_a_refused_name(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    jobs = [Submission("child", queue="children")]
    q.run(verbs.record(lease, [call(outcome="done")]))
    q.run(verbs.spawn(lease, "2", jobs, name="c", digest="d"))
    expect("another name", is_told(q, verbs.record(lease, [call(name="other")])), True)
    expect("other arguments", is_told(q, verbs.record(lease, [{**call(), "digest": "e"}])), True)
    expect("another number of jobs", is_told(q, verbs.spawn(lease, "2", jobs * 2, name="c", digest="d")), True)
    named = Submission("the program has changed", queue="children", priority=5000)
    expect("a refused job", is_told(q, verbs.spawn(lease, "3", [named], name="c", digest="d")), False)


@probe("record", "calls")
def a_call_in_flight_keeps_its_tries_and_its_time(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    for tries in (1, 3, 2):
        q.run(verbs.record(lease, [call(tries=tries), call("2", "sleep", until_seconds=60)]))
        sessions.clock.advance(20)
    first, sleep = q.run(verbs.history(lease.job_id))
    expect("tries", (first.outcome, first.tries), (None, 3))
    expect("at its time", (sleep.is_over, first.is_over), (True, False))
    q.release(lease)
    again = q.claim_one()
    q.run(verbs.record(again, [call(tries=3)]))
    begun_by = "select fencing_token from faultline.calls where number = '1'"
    expect("begun by", q.value(begun_by), lease.fencing_token)
    q.run(verbs.record(again, [call(outcome="done", tries=4)]))
    expect("ended by", q.value(begun_by), again.fencing_token)


@probe("record", "lock_lease")
def the_same_call_recorded_twice_at_once_stands_once(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease()
    q.begin()
    q.run(verbs.record(lease, [call(outcome="done", result=1)]))
    second = other.start(lambda session: session.run(verbs.record(lease, [call(outcome="done", result=2)])))
    sessions.wait_until_blocked(other, second)
    q.commit()
    expect("the second", second.result(), Unwritten())
    expect("the history", outcomes_of(q, lease), [("done", 1, None)])


def _writes(lease: Lease, target: Any) -> dict[str, Statement[Any]]:
    """Every verb of a running program."""
    return {
        "record": verbs.record(lease, [call("1", outcome="done")]),
        "spawn": verbs.spawn(lease, "2", [Submission("child", queue="children")], name="c", digest="d"),
        "receive": verbs.receive(lease, "3", name="go"),
        "first_over": verbs.first_over(lease, [{"number": "6", "kind": "sleep", "name": "sleep", "seconds": 60}]),
        "watch": verbs.watch(lease, "4", [target], name="w", digest="d"),
        "collect_outcomes": verbs.collect_outcomes(lease, "5"),
    }


@probe("record", "spawn", "receive", "first_over", "watch", "collect_outcomes", "lock_lease", "refuse")
def a_stale_lease_records_spawns_receives_takes_and_watches_nothing(sessions: Sessions) -> None:
    q = sessions.open()

    def loses(reason: str, lose: Callable[[Lease], object]) -> None:
        target = q.enqueue(queue="other")
        lease = q.new_lease()
        q.run(verbs.spawn(lease, "5", [], name="none", digest="d"))
        q.run(verbs.signal(lease.job_id, "go"))
        lose(lease)
        for verb, statement in _writes(lease, target).items():
            try:
                found = q.run(statement)
            except StaleLease as stale:
                expect(f"reason for {verb}", stale.reason, reason)
            else:
                expect(f"{verb} is a verb that returns it", verb, "record")
                expect(f"reason for {verb}", reasons(found), [reason])
        expect("on record", q.refusals(lease.job_id), [(verb, reason) for verb in _writes(lease, target)])
        expect("calls", [known.number for known in q.run(verbs.history(lease.job_id))], ["5"])
        expect("the one to take", q.run(verbs.history(lease.job_id))[0].outcome, None)
        expect("children", q.claim(queue="children"), [])
        expect("watched", q.value("select count(*) from faultline.open_jobs where watched"), 0)
        expect("received", q.value("select count(received_by) from faultline.signals"), 0)

    loses("lease_lost", lambda lease: q.release(lease, delays=[3600]))
    loses("not_running", lambda lease: q.run(verbs.cancel(lease.job_id)))
    loses("token_mismatch", lambda lease: (q.release(lease), q.claim_one()))


@probe("record", "sweeps")
def a_loser_of_a_race_is_closed_once_and_its_children_are_swept(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    call_id = q.run(verbs.spawn(lease, "1", [Submission("child", queue="children")], name="s", digest="d"))
    q.run(verbs.receive(lease, "2", name="s", digest="d"))
    q.execute("update faultline.calls set awaited = true")
    losers = [call(kind="children", outcome="closed"), call("2", "signal", outcome="closed")]
    for _ in range(2):
        q.run(verbs.record(lease, [*losers, call("3", outcome="closed")]))
    expect("the history", outcomes_of(q, lease), [("closed", None, None)] * 3)
    expect("sweeps", q.execute("select job_id, call_id from faultline.sweeps"), [(lease.job_id, call_id)])
    expect("awaited", q.value("select count(*) from faultline.calls where awaited"), 0)
    q.run(verbs.signal(lease.job_id, "s"))
    expect("asked for later", q.run(verbs.receive(lease, "2", name="s", digest="d")).status, "closed")
    expect("taken later", q.run(verbs.collect_outcomes(lease, "1")).status, "closed")


@probe("record", "check_call")
def only_the_database_says_how_a_wait_ended(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    for kind, verb in (
        ("signal", "receive"),
        ("children", "collect_outcomes"),
        ("watch", "collect_outcomes"),
        ("after", "collect_outcomes"),
    ):
        for outcome in ("done", "failed", "timeout"):
            with refused(q, "FL005", "cannot be recorded", verb, what=f"{kind} that is {outcome}"):
                q.run(verbs.record(lease, [call(kind=kind, outcome=outcome)]))


@probe("record", "calls")
def why_a_program_stops_is_added_to_a_signal_once_and_to_nothing_else(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(verbs.receive(lease, "2", name="s", digest="d", seconds=0))
    q.run(verbs.record(lease, [call(outcome="done", result=1)]))
    for why in ("first", "second"):
        q.run(verbs.record(lease, [call(error=why), call("2", "signal", error=why)]))
    expect("errors", [one.error for one in q.run(verbs.history(lease.job_id))], [None, "first"])
    for number in ("1", "2"):
        with refused(q, "FL002", "is history", what=f"call {number}"):
            q.execute("update faultline.calls set error = 'third' where number = %s", number)
    q.run(verbs.receive(lease, "3", name="s", digest="d", seconds=0))
    for change in ("error = 'why', result = '1'", "error = 'why', outcome = 'done'", "error = 'why', until = now()"):
        with refused(q, "FL002", "is history", what=change):
            q.execute(f"update faultline.calls set {change} where number = '3'")


@probe("record", "check_call")
def a_call_that_makes_no_sense_is_refused_and_nothing_is_written(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    bad: list[dict[str, Any]] = [
        call("1."),
        call(""),
        call("a"),
        call("1" * 201),
        call(name=""),
        call(name="n" * 201),
        {**call(), "kind": None},
        {"kind": "step"},
        call(until_seconds=-1),
        call(until_seconds=1e300),
    ]
    for one in bad:
        with refused(q, "FL005", what=repr(one)):
            q.run(verbs.record(lease, [call("9", outcome="done"), one]))
    for one in (call(kind="nothing"), call(outcome="perhaps")):
        with refused(q, "23514", what=repr(one)):
            q.run(verbs.record(lease, [call("9", outcome="done"), one]))
    with refused(q, "FL005", "array of objects"):
        q.run(verbs.record_text(lease, "{}"))
    with refused(q, "22P05", what="a NUL character"):
        q.run(verbs.record_text(lease, '[{"number": "1", "kind": "step", "name": "s", "result": "\\u0000"}]'))
    expect("calls", q.run(verbs.history(lease.job_id)), [])


@probe("record", "history")
def results_come_back_as_they_were_recorded(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    results: list[Any] = [None, True, 0, -1.5, 2**63 - 1, 1e20, "", "é\n😀", [], {}, {"a": [1, None, {"b": "c"}]}]
    calls = [call(str(n), outcome="done", result=result) for n, result in enumerate(results)]
    q.run(verbs.record(lease, calls))
    expect("results", [known.result for known in q.run(verbs.history(lease.job_id))], results)
    q.run(verbs.record(lease, [call("99", outcome="failed", error="e" * 20_000)]))
    expect("length of a long error", len(q.run(verbs.history(lease.job_id))[-1].error or ""), 16_384)


@probe("spawn", "receive", "first_over", "watch", "collect_outcomes", "read_committed")
def verbs_that_look_under_the_lock_need_read_committed(sessions: Sessions) -> None:
    q = sessions.open()
    lease, target = q.new_lease(), q.enqueue(queue="other")
    for isolation in ("repeatable read", "serializable"):
        for verb, statement in _writes(lease, target).items():
            q.begin(isolation)
            if verb == "record":
                expect("recorded", q.run(statement), Unwritten())
            else:
                with refused(q, "FL005", verb, "READ COMMITTED"):
                    q.run(statement)
            q.rollback()

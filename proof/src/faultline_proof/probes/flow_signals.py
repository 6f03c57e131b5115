"""Signals: kept until they are asked for, each received once, and no answer to another question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.errors import StaleLease
from faultline.core.model import Unwritten
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions

_UNKNOWN = "00000000-0000-0000-0000-000000000000"


def receive(q: Session, lease: Lease, number: str = "1", name: str = "go", **fields: Any) -> tuple[str, Any]:
    found = q.run(verbs.receive(lease, number, name=name, **fields))
    return found.status, found.payload


@probe("signal", "receive", "kept_signal")
def a_signal_is_kept_received_once_and_in_the_order_sent(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.run(verbs.signal(q.enqueue(delay_seconds=60), "go", "to another job"))
    q.run(verbs.signal(lease.job_id, "stop", "of another name"))
    for n in (1, 2):
        expect("sent", q.run(verbs.signal(lease.job_id, "go", {"n": n})), wanted=True)
    for number, wanted in (("1", {"n": 1}), ("2", {"n": 2}), ("1", {"n": 1})):
        expect(f"call {number}", receive(q, lease, number), ("received", wanted))
    expect("the third", receive(q, lease, "3"), ("none", None))
    q.release(lease)
    again = q.claim_one()
    expect("a later attempt", receive(q, again, "1"), ("received", {"n": 1}))
    received = (
        "select received_by, received_at is not null from faultline.signals where job_id = %s and name = 'go' order by id"
    )
    expect("received by", q.execute(received, lease.job_id), [("1", True), ("2", True)])
    expect("its flow", q.value("select flow_id from faultline.open_jobs where id = %s", lease.job_id), lease.job_id)
    expect("broken", q.broken_invariants(), [])


def _stops(q: Session, lease: Lease, number: str, why: str) -> None:
    q.run(verbs.record(lease, [{"number": number, "kind": "signal", "name": "go", "error": why}]))


@probe("retry", "reopen_flows", "stopped_at", "receive", "record", "signals")
def a_retry_opens_the_signal_at_which_the_program_stopped(sessions: Sessions) -> None:
    q = sessions.open()
    other, lease = q.new_lease(), q.new_lease()
    for one, number, payload in ((other, "2", "other"), (lease, "1", "read"), (lease, "2", "wrong")):
        q.run(verbs.signal(one.job_id, "go", payload))
        expect(f"call {number}", receive(q, one, number), ("received", payload))
    _stops(q, lease, "2", "it does not fit")
    _stops(q, lease, "2", "said again")
    error = "select error from faultline.calls where job_id = %s and number = '2'"
    expect("why", q.value(error, lease.job_id), "it does not fit")
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))
    again = q.claim_one()
    expect("what was read", receive(q, again, "1"), ("received", "read"))
    expect("what did not fit", receive(q, again, "2"), ("none", None))
    q.run(verbs.signal(lease.job_id, "go", "right"))
    expect("what comes then", receive(q, again, "2"), ("received", "right"))
    marks = "select received_by from faultline.signals order by id"
    expect("received by", [row[0] for row in q.execute(marks)], ["2", "1", f"{lease.fencing_token}/2", "2"])
    expect("broken", q.broken_invariants(), [])


@probe("retry", "reopen_flows", "stopped_at", "receive")
def a_signal_that_did_not_come_is_waited_for_as_long_again_after_a_retry(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    until = "select until from faultline.calls where job_id = %s and number = %s"
    expect("with a default", receive(q, lease, "1", seconds=0), ("timeout", None))
    expect("without one", receive(q, lease, "2", seconds=0), ("timeout", None))
    _stops(q, lease, "2", "it did not come")
    q.fail(lease, then="fail")
    q.run(verbs.retry(lease.job_id))
    again = q.claim_one()
    expect("with a default, again", receive(q, again, "1", seconds=60), ("timeout", None))
    expect("without one, again", receive(q, again, "2", seconds=60), ("none", None))
    first = q.value(until, lease.job_id, "2")
    expect("its time is set", first is not None, wanted=True)
    expect("asked again", receive(q, again, "2", seconds=600), ("none", None))
    expect("its time stays", q.value(until, lease.job_id, "2"), first)


@probe("signal")
def signals_of_one_sender_keep_their_order_beside_others(sessions: Sessions) -> None:
    q, slow = sessions.open(), sessions.open()
    lease = q.new_lease()
    slow.begin()
    slow.run(verbs.signal(lease.job_id, "go", "slow 1"))
    q.run(verbs.signal(lease.job_id, "go", "quick 1"))
    slow.run(verbs.signal(lease.job_id, "go", "slow 2"))
    q.run(verbs.signal(lease.job_id, "go", "quick 2"))
    first = receive(q, lease, "1")[1]
    slow.commit()
    rest = [receive(q, lease, number)[1] for number in ("2", "3", "4")]
    for sender in ("slow", "quick"):
        found = [payload for payload in (first, *rest) if payload.startswith(sender)]
        expect(f"order of {sender}", found, [f"{sender} 1", f"{sender} 2"])


@probe("signal", "signals")
def the_same_key_counts_once_also_at_once_and_after_the_end(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease()
    q.begin()
    expect("the first", q.run(verbs.signal(lease.job_id, "go", 1, key="k")), wanted=True)
    second = other.start(lambda session: session.run(verbs.signal(lease.job_id, "go", 2, key="k")))
    sessions.wait_until_blocked(other, second)
    q.commit()
    expect("the second", second.result(), wanted=False)
    expect("kept", q.execute("select payload from faultline.signals"), [(1,)])
    expect("nudges", q.value("select count(*) from faultline.nudges"), 1)
    expect("received", receive(q, lease), ("received", 1))
    q.complete(lease)
    expect("sent again after the end", q.run(verbs.signal(lease.job_id, "go", 1, key="k")), wanted=False)
    job_id = q.enqueue()
    expect("of another job", q.run(verbs.signal(job_id, "go", 1, key="k")), wanted=True)


@probe("signal")
def a_signal_locks_nothing_however_long_its_transaction_lasts(sessions: Sessions) -> None:
    q, sender = sessions.open(), sessions.open()
    running = q.new_lease()
    sender.begin()
    sender.run(verbs.signal(running.job_id, "go", key="k"))
    expect("renewed", sessions.at_once(q, lambda session: session.renew(running)), Unwritten())
    expect("step", sessions.at_once(q, lambda session: session.step(running)), Unwritten())
    expect("asked", sessions.at_once(q, lambda session: receive(session, running)), ("none", None))
    sessions.at_once(q, lambda session: session.fence(running))
    expect("completed", sessions.at_once(q, lambda session: session.complete(running)), Unwritten())
    sender.commit()
    waiting = q.enqueue()
    sender.begin()
    sender.run(verbs.signal(waiting, "go"))
    expect("claimed", len(sessions.at_once(q, lambda session: session.claim())), 1)
    sessions.at_once(q, lambda session: session.run(verbs.cancel(waiting)))
    sender.commit()
    holder = sessions.open()
    lease = q.new_lease()
    holder.begin()
    holder.fence(lease)
    expect("sent to a locked job", sessions.at_once(q, lambda s: s.run(verbs.signal(lease.job_id, "go"))), wanted=True)


@probe("signal", "nudges", "wake_resolvers")
def a_signal_leaves_a_nudge_and_a_hint_with_its_commit(sessions: Sessions) -> None:
    q, listener = sessions.open(), sessions.open()
    job_id = q.enqueue()
    listener.execute("listen faultline")
    q.begin()
    q.run(verbs.signal(job_id, "go"))
    q.rollback()
    counted = "select (select count(*) from faultline.signals), (select count(*) from faultline.nudges)"
    expect("after a rollback", (q.execute(counted), listener.notices()), ([(0, 0)], []))
    q.run(verbs.signal(job_id, "go"))
    expect("after a commit", (q.execute(counted), len(listener.notices())), ([(1, 1)], 1))
    expect("nudged", q.execute("select job_id, kind from faultline.nudges"), [(job_id, 0)])
    q.execute("set faultline.notify = off")
    q.run(verbs.signal(job_id, "go"))
    expect("without a hint", (q.execute(counted), listener.notices()), ([(2, 2)], []))


@probe("signal", "not_open")
def signals_to_unknown_or_ended_jobs_are_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with refused(q, "FL004", "no job"):
        q.run(verbs.signal(_UNKNOWN, "go"))
    done, failed, cancelled = q.new_lease(), q.new_lease(), q.new_lease()
    q.complete(done)
    q.fail(failed, then="fail")
    q.run(verbs.cancel(cancelled.job_id))
    with refused(q, "FL002", "has succeeded and cannot be signalled"):
        q.run(verbs.signal(done.job_id, "go"))
    for lease, state in ((failed, "failed"), (cancelled, "cancelled")):
        with refused(q, "FL002", f"is {state} and receives no signals"):
            q.run(verbs.signal(lease.job_id, "go"))
    expect("kept", q.value("select count(*) from faultline.signals"), 0)


@probe("signal", "keys")
def a_signal_finds_its_job_by_key_and_within_the_queues_allowed(sessions: Sessions) -> None:
    q = sessions.open()
    q.enqueue(idempotency_key="order 7", queue="a")
    lease = q.claim_one(queue="a")
    expect("sent", q.run(verbs.signal(None, "go", 1, idempotency_key="order 7")), wanted=True)
    expect("received", receive(q, lease), ("received", 1))
    with refused(q, "FL004", 'idempotency key "order 8"'):
        q.run(verbs.signal(None, "go", idempotency_key="order 8"))
    for job_id, key in ((None, None), (lease.job_id, "order 7")):
        with refused(q, "FL005", "needs the id of a job"):
            q.run(verbs.signal(job_id, "go", idempotency_key=key))
    expect("in its queue", q.run(verbs.signal(lease.job_id, "go", key="k", only_queues=["a", "b"])), wanted=True)
    for key in (None, "k"):
        with refused(q, "FL004", "no job"):
            q.run(verbs.signal(lease.job_id, "go", key=key, only_queues=["b"]))
    q.complete(lease)
    with refused(q, "FL004", "no job"):
        q.run(verbs.signal(lease.job_id, "go", only_queues=["b"]))


@probe("signal", "receive", "check_wait")
def an_answer_to_a_wait_that_is_over_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    receive(q, lease, "1", seconds=60)
    q.run(verbs.record(lease, [{"number": "2", "kind": "step", "name": "go"}]))
    with refused(q, "FL004", "has no call 7"):
        q.run(verbs.signal(lease.job_id, "go", for_call="7"))
    for name, number in (("stop", "1"), ("go", "2")):
        with refused(q, "FL002", f"call {number}", "does not wait"):
            q.run(verbs.signal(lease.job_id, name, for_call=number))
    sessions.clock.advance(60)
    with refused(q, "FL002", "no longer waits"):
        q.run(verbs.signal(lease.job_id, "go", for_call="1"))
    receive(q, lease, "3", seconds=60)
    q.run(verbs.signal(lease.job_id, "go", "to 3", for_call="3"))
    expect("another call", receive(q, lease, "4"), ("none", None))
    expect("received", receive(q, lease, "3"), ("received", "to 3"))
    with refused(q, "FL002", "no longer waits"):
        q.run(verbs.signal(lease.job_id, "go", for_call="3"))


@probe("receive", "kept_signal")
def a_late_approval_does_not_answer_the_next_question(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    expect("the first question", receive(q, lease, "1", name="allow", seconds=60, fresh=True), ("none", None))
    other.begin()
    other.run(verbs.signal(lease.job_id, "allow", "late, and committed later", key="later"))
    sessions.clock.advance(61)
    expect("its time is over", receive(q, lease, "1", name="allow", seconds=60, fresh=True), ("timeout", None))
    q.run(verbs.signal(lease.job_id, "allow", "late"))
    sessions.clock.advance(1)
    expect("the second question", receive(q, lease, "2", name="allow", seconds=60, fresh=True), ("none", None))
    other.commit()
    expect("asked again", receive(q, lease, "2", name="allow", seconds=60, fresh=True), ("none", None))
    q.run(verbs.signal(lease.job_id, "allow", "for another", for_call="2"))
    q.run(verbs.signal(lease.job_id, "allow", "in time"))
    expect("addressed", receive(q, lease, "2", name="allow", seconds=60, fresh=True), ("received", "for another"))
    expect("a queue takes all", receive(q, lease, "3", name="allow"), ("received", "late, and committed later"))


@probe("receive")
def a_timeout_that_was_recorded_stays_one(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    receive(q, lease, seconds=60)
    sessions.clock.advance(59)
    expect("before its time", receive(q, lease, seconds=60), ("none", None))
    sessions.clock.advance(1)
    expect("at its time", receive(q, lease, seconds=60), ("timeout", None))
    q.run(verbs.signal(lease.job_id, "go", "late"))
    expect("a signal later", receive(q, lease, seconds=60), ("timeout", None))
    expect("the next wait", receive(q, lease, "2"), ("received", "late"))
    expect("without any time", receive(q, lease, "3", seconds=0), ("timeout", None))
    days = "select extract(day from until - begun_at)::integer from faultline.calls where number = '2'"
    expect("days of a wait without a limit", q.value(days), 30)


@probe("receive")
def a_signal_that_is_there_when_the_time_is_over_is_received(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease()
    receive(q, lease, seconds=60)
    q.run(verbs.signal(lease.job_id, "go", "in time"))
    sessions.clock.advance(3600)
    expect("received", receive(q, lease, seconds=60), ("received", "in time"))


@probe("receive", "lock_lease")
def a_stale_attempt_receives_nothing_beside_its_successor(sessions: Sessions) -> None:
    q, zombie = sessions.open(), sessions.open()
    stale = q.new_lease()
    q.run(verbs.signal(stale.job_id, "go", 1))
    q.release(stale)
    lease = q.claim_one()
    q.begin()
    expect("the successor", receive(q, lease), ("received", 1))
    answer = zombie.start(lambda session: receive(session, stale))
    try:
        found = answer.result(5)
    except StaleLease as error:
        expect("why", error.reason, "token_mismatch")
    else:
        raise AssertionError(f"a stale attempt received {found}")
    q.commit()
    expect("on record", q.refusals(stale.job_id), [("receive", "token_mismatch")])


@probe("receive", "lock_lease")
def the_same_receipt_twice_at_once_takes_one_signal(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    lease = q.new_lease()
    for n in (1, 2):
        q.run(verbs.signal(lease.job_id, "go", n))
    q.begin()
    expect("the first", receive(q, lease), ("received", 1))
    second = other.start(lambda session: receive(session, lease))
    sessions.wait_until_blocked(other, second)
    q.commit()
    expect("the second", second.result(), ("received", 1))
    expect("received", q.value("select count(received_by) from faultline.signals"), 1)


@probe("receive", "same_call")
def a_wait_that_has_changed_is_noticed(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    receive(q, lease, digest="d")
    for name, digest in (("stop", "d"), ("go", "e")):
        with refused(q, "FL005", "the program has changed"):
            q.run(verbs.receive(lease, "1", name=name, digest=digest))


@probe("signal", "receive")
def values_of_signals_that_make_no_sense_are_refused(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    for name in ("", "n" * 201, "a\nb"):
        with refused(q, "FL005", "the name", what=f"the name {name!r}"):
            q.run(verbs.signal(lease.job_id, name))
    for key in ("", "k" * 501, "a\x07"):
        with refused(q, "FL005", "key", what=f"the key {key!r}"):
            q.run(verbs.signal(lease.job_id, "go", key=key))
    with refused(q, "FL005", "more than the limit"):
        q.run(verbs.signal(lease.job_id, "go", "x" * 1_048_577))
    with refused(q, "22P05", what="a NUL character"):
        q.execute("select faultline.signal(%s, 'go', %s)", lease.job_id, '"\\u0000"')
    with refused(q, "FL005", "by has control characters"):
        q.run(verbs.signal(lease.job_id, "go", sent_by="a\nb"))
    for seconds in (-1, float("nan"), float("inf"), 1e300):
        with refused(q, "FL005", "seconds", what=f"a wait of {seconds}"):
            receive(q, lease, seconds=seconds)
    payloads: list[Any] = [None, 0, 1e20, -1.5, "é😀", [], {"a": [None]}]
    for payload in payloads:
        q.run(verbs.signal(lease.job_id, "go", payload))
    found = [receive(q, lease, str(number))[1] for number in range(len(payloads))]
    expect("payloads", found, payloads)


@probe("signal", "signals")
def a_job_keeps_a_thousand_signals_and_takes_more_as_it_receives(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    q.execute("select faultline.signal(%s, 'go') from generate_series(1, 1000)", lease.job_id)
    with refused(q, "FL007", "keeps 1000 signals"):
        q.run(verbs.signal(lease.job_id, "go"))
    q.run(verbs.signal(q.enqueue(), "go"))
    receive(q, lease)
    expect("after a receipt", q.run(verbs.signal(lease.job_id, "go")), wanted=True)


@probe("signal", "journal", "signature")
def the_journal_says_who_sent_a_signal_that_is_signed(sessions: Sessions) -> None:
    q = sessions.open()
    job_id = q.enqueue()
    q.run(verbs.signal(job_id, "go"))
    expect("without a sender", q.events(job_id), [])
    q.run(verbs.signal(job_id, "go", "secret", key="k", sent_by="ada"))
    expect("with one", q.events(job_id), ["signalled"])
    detail = q.journal(job_id)[0].detail
    expect("what it says", (detail["by"], detail["name"], detail["key"], "payload" in detail), ("ada", "go", "k", False))
    login = q.value("select session_user::text")
    expect("senders", q.execute("select sent_by from faultline.signals order by id"), [(login,), ("ada",)])

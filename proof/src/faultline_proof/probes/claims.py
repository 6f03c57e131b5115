"""What a claim takes, in which order, and what it grants."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from faultline.core.model import Bound, Submission, Unwritten
from faultline.store import verbs
from faultline.store.reads import views
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions

_MANY = 10_001
_FILL = (
    "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue,"
    " task, args) select gen_random_uuid(), now(), now(), 30, 0, 5, true, 'default', 't', '{}' from generate_series(1, %s)"
)


@probe("claim")
def a_claim_raises_the_token_counts_the_attempt_and_sets_the_lease(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        job_id = q.enqueue(args={"n": 1}, lease_seconds=7.5, idempotency_key="k")
        for n in (1, 2):
            lease = q.claim_one()
            expect("the lease", (lease.job_id, lease.fencing_token, lease.attempt, lease.args), (job_id, n, n, {"n": 1}))
            expect("its key", lease.idempotency_key, "k")
            job = q.job(job_id)
            found = (job.state.value, job.owner, job.fencing_token, job.attempt)
            expect("the job", found, ("running", lease.owner, n, n))
            seconds = "select extract(epoch from lease_expires_at - claimed_at)::float8 from faultline.open_jobs"
            expect("length of the lease", q.value(seconds), 7.5)
            expect("renewals", job.renewals, 0)
            q.renew(lease)
            q.fail(lease)
            q.execute("update faultline.open_jobs set next_run_at = faultline.now()")


@probe("claim")
def without_a_key_the_jobs_id_is_its_idempotency_key(sessions: Sessions) -> None:
    lease = sessions.open().new_lease()
    expect("the key", lease.idempotency_key, str(lease.job_id))


@probe("claim")
def arguments_that_python_cannot_read_do_not_strand_the_batch(sessions: Sessions) -> None:
    q = sessions.open()
    for args in ("""'{"a": 1e400}'""", """('{"a":' || repeat('[', 2000) || repeat(']', 2000) || '}')::jsonb"""):
        with q.unsaved():
            q.enqueue()
            odd = q.value(f"select faultline.enqueue('t', {args})")
            q.enqueue()
            leases = q.claim()
            expect("granted", len(leases), 3)
            expect("at fault", [lease.job_id for lease in leases if lease.fault is not None], [odd])


@probe("claim", "pause", "resume")
def a_paused_queue_grants_nothing_until_it_is_resumed(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    job_id, running = q.enqueue(), q.new_lease()
    since = q.run(verbs.pause("default", "one"))
    sessions.clock.advance(60)
    expect("time of the first pause", q.run(verbs.pause("default", "two")), since)
    expect("the last reason", q.value("select paused_reason from faultline.queues"), "two")
    expect("what runs goes on", (q.renew(running), q.complete(running)), (Unwritten(), Unwritten()))
    expect("granted of the paused queue", q.claim(), [])
    other = q.enqueue(queue="other")
    expect("granted of another queue", [lease.job_id for lease in q.claim(queue="other")], [other])
    expect("resuming another queue", q.run(verbs.resume("other")), wanted=False)
    q.run(verbs.pause("third"))
    q.execute("listen faultline")
    expect("resuming it", q.run(verbs.resume("default")), wanted=True)
    hint = '{"queue":"default","priority":-32768,"run_at":"1970-01-01T00:00:00+00:00"}'
    expect("hints for it", q.notices(), [hint])
    expect("resuming it again", q.run(verbs.resume("default")), wanted=False)
    expect("granted after it was resumed", [lease.job_id for lease in q.claim()], [job_id])
    expect("still paused", q.execute("select name from faultline.queues where paused_at is not null"), [("third",)])
    for name in ("", "x" * 101, None):
        with refused(q, "FL005", "1 to 100 characters", what=f"a pause of {name!r}"):
            q.run(verbs.pause(name))  # type: ignore[arg-type]
    for name in (" ", "a ", "\ta", "a\nb"):
        with refused(q, "FL005", "must not contain control characters", what=f"a pause of {name!r}"):
            q.run(verbs.pause(name))


@probe("claim")
def the_most_urgent_comes_first_and_then_the_longest_due(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    late = q.enqueue()
    sessions.clock.advance(1)
    later = [place.job_id for place in q.run(verbs.enqueue_many([Submission("t")] * 2))]
    urgent, relaxed = q.enqueue(priority=-5), q.enqueue(priority=7)
    sessions.clock.advance(1)
    expect("the order", [q.claim_one().job_id for _ in range(5)], [urgent, late, *later, relaxed])
    for priority in (3, 1, 2, 1, 3):
        q.enqueue(priority=priority)
    expect("over several priorities", [lease.priority for lease in q.claim(3)], [1, 1, 2])
    expect("and the rest", [lease.priority for lease in q.claim(10)], [3, 3])


@probe("claim")
def a_claim_leaves_what_is_not_due_or_not_its_own(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.run(verbs.enqueue_many([Submission("t", priority=-1, delay_seconds=3600)] * 3))
        q.enqueue(queue="other", priority=5)
        due = q.enqueue(priority=5)
        expect("claimed", [lease.job_id for lease in q.claim()], [due])
        expect("claimed again", q.claim(), [])
    sessions.clock.take()
    q.enqueue(delay_seconds=60)
    sessions.clock.advance(59.9)
    expect("before its time", q.claim(), [])
    sessions.clock.advance(0.1)
    expect("at its time", len(q.claim()), 1)


@probe("claim")
def asking_for_no_jobs_gives_none(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.enqueue()
        for most in ("null", "0", "-5"):
            expect(f"jobs for {most}", q.value(f"select count(*) from faultline.claim('default', 'w/1', {most})"), 0)


@probe("claim")
def an_owner_is_needed(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.enqueue()
        for owner in (None, "", "w" * 201):
            with refused(q, "FL005", "owner", what=repr(owner)):
                q.execute("select faultline.claim('default', %s, 1)", owner)


@probe("claim")
def a_priority_that_the_caller_does_not_know_is_found_between_its_bounds(sessions: Sessions) -> None:
    q = sessions.open()
    for priority in (-9, -1, 1, 4, 6, 9):
        with q.unsaved():
            known = q.job(q.enqueue(priority=0)).created_at
            job_id = q.enqueue(priority=priority)
            bounds = [Bound(each, known + timedelta(hours=1)) for each in (5, 0, -5)]
            expect(f"at priority {priority}", [lease.job_id for lease in q.claim(bounds=bounds)], [job_id])


@probe("claim")
def a_bound_skips_what_lies_below_it_at_its_priority_only(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    old = [q.enqueue(priority=priority) for priority in (0, 1)]
    sessions.clock.advance(10)
    new = [q.enqueue(priority=priority) for priority in (0, 1)]
    bound = Bound(0, q.job(new[0]).created_at)
    unused = [Bound(priority, bound.run_at) for priority in range(2, 20)]
    expect("claimed", [lease.job_id for lease in q.claim(bounds=[bound, *unused])], [new[0], old[1], new[1]])


@probe("claim")
def a_bound_lies_between_jobs_that_are_due_at_the_same_moment(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    jobs = sorted(q.enqueue() for _ in range(3))
    moment = q.job(jobs[0]).created_at
    with q.unsaved():
        expect("claimed", [lease.job_id for lease in q.claim(bounds=[Bound(0, moment, jobs[1])])], jobs[1:])
    without_ids = q.value("select count(*) from faultline.claim('default', 'w/1', 10, '{0}', array[%s])", moment)
    expect("claimed from the whole moment", without_ids, 3)


@probe("claim", "needs_start_record")
def an_attempt_that_could_end_the_job_or_follows_a_crash_is_to_be_marked(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    first = q.new_lease(max_attempts=2)
    q.fail(first)
    last = q.claim_one()
    crashed = q.new_lease(priority=-200)
    sessions.clock.advance(31)
    q.reap()
    expect(
        "marks",
        (first.needs_start_record, last.needs_start_record, crashed.needs_start_record, q.claim_one().needs_start_record),
        (False, True, False, True),
    )


@probe("claim", "reap")
def the_mark_of_one_attempt_says_nothing_of_the_next(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    started = q.new_lease()
    q.record_start(started)
    q.fail(started)
    q.claim_one()
    sessions.clock.advance(31)
    q.reap()
    expect("attempts", q.job(started.job_id).attempt, 1)


@probe("claim")
def a_claim_takes_no_more_than_it_may(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.hand.execute(_FILL, _MANY)
    with q.unsaved():
        taken = q.value("select count(*) from faultline.claim('default', 'w/1', 1000000)")
        expect("claimed", taken, _MANY - 1)


@probe("due")
def a_look_skips_what_lies_below_its_bounds_and_nothing_else(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    first, second = sorted(q.enqueue(queue="a") for _ in range(2))
    at = q.job(first).created_at
    later = at + timedelta(hours=1)
    over = [Bound(0, later)]
    for name, bounds, expected in (
        ("below both", [Bound(0, later)], []),
        ("at the second", [Bound(0, at, second)], ["a"]),
        ("past the second", [Bound(0, at, UUID(int=second.int + 1))], []),
        ("of other priorities", [Bound(-3, later), Bound(7, later)], ["a"]),
    ):
        expect(name, q.run(views.due(["a"], {"a": bounds})), expected)
    q.enqueue(queue="b")
    q.enqueue(queue="c", priority=-4)
    q.enqueue(queue="d", priority=4)
    expect("of one queue", q.run(views.due(["a", "b"], {"a": over})), ["b"])
    expect("of the last queue", q.run(views.due(["a", "b"], {"b": over})), ["a"])
    four = dict.fromkeys("abcd", over)
    expect("of all, but not of all priorities", q.run(views.due([*"abcd"], four)), ["c", "d"])
    expect(
        "with a bound of another queue before it",
        q.run(views.due(["c", "b"], {"c": [*over, Bound(5, later)], "b": over})),
        ["c"],
    )
    given = "select count(*) from faultline.due('{a}', '{a}', '{0}'"
    expect("without a moment", q.value(f"{given})"), 1)
    expect("without an id", q.value(f"{given}, array[%s])", at), 1)


@probe("due")
def a_queue_is_due_when_a_claim_would_get_something(sessions: Sessions) -> None:
    q = sessions.open()
    q.enqueue(queue="now")
    q.enqueue(queue="later", delay_seconds=3600)
    q.enqueue(queue="both", delay_seconds=3600, priority=-5)
    q.enqueue(queue="both", priority=3)
    q.enqueue(queue="paused")
    q.run(verbs.pause("paused"))
    q.enqueue(queue="running")
    q.claim(queue="running")
    names = ["now", "later", "both", "paused", "running", "empty"]
    expect("due", q.run(views.due(names)), ["now", "both"])
    expect("of none", q.run(views.due(["empty"])), [])
    q.run(verbs.resume("paused"))
    sessions.clock.advance(3601)
    expect("due later", q.run(views.due(names[:4])), ["now", "later", "both", "paused"])

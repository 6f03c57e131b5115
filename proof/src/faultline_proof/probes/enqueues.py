"""What becomes of a submission: what is refused, what is known already, and who is told."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from psycopg.types.json import Json

from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import jsontext, verbs
from faultline.store.reads import views
from faultline_proof.probes.probe import expect, probe, refused, the_one
from faultline_proof.sessions import numbered_id

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions

_SINCE_UUIDV7 = 180000
_SENSELESS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"task": ""}, "it has no task"),
    ({}, "it has no task"),
    ({"task": "x" * 201}, "longer than 200"),
    ({"task": "t", "queue": ""}, "the name of its queue is empty"),
    ({"task": "t", "queue": "q" * 101}, "longer than 100"),
    ({"task": "t", "queue": " "}, "white space"),
    ({"task": "t", "queue": "a "}, "white space"),
    ({"task": "t", "queue": "a\tb"}, "control characters"),
    ({"task": "t", "args": [1]}, "not a JSON object"),
    ({"task": "t", "args": {"x": "y" * 2000}}, "more than the limit of 2000"),
    ({"task": "t", "priority": 1_000_000}, "priority is outside"),
    ({"task": "t", "priority": 0.5}, "not a whole number"),
    ({"task": "t", "max_attempts": 0}, "max_attempts is outside"),
    ({"task": "t", "max_attempts": 1.5}, "not a whole number"),
    ({"task": "t", "lease_seconds": 0}, "lease is outside"),
    ({"task": "t", "delay_seconds": -1}, "delay is negative"),
    ({"task": "t", "delay_seconds": 1e12}, "longer than ten years"),
    ({"task": "t", "delay_seconds": 1, "run_at": "2030-01-01T00:00:00Z"}, "both a delay and a run_at"),
    ({"task": "t", "run_at": "2030-01-01T00:00:00"}, "not a time with a time zone"),
    ({"task": "t", "run_at": "infinity"}, "not a time with a time zone"),
    ({"task": "t", "run_at": "0044-03-15 00:00:00+00"}, "outside the years 1970 to 9998"),
    ({"task": "t", "run_at": "20000-01-01 00:00:00Z"}, "outside the years 1970 to 9998"),
    ({"task": "t", "id": "6f1c2b9e-0d7a-4c3e-9a51-1f0e8d2c7b44"}, "its id is not a UUID of version 7"),
    ({"task": "t", "idempotency_key": ""}, "idempotency_key is empty"),
    ({"task": "t", "idempotency_key": "k" * 501}, "longer than 500"),
)


@probe("parse_new_jobs", "reject_job", "enqueue_many", "is_time_ordered")
def a_senseless_job_is_named_and_nothing_is_enqueued(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.execute("update faultline.settings set args_bytes_max = 2000")
        for fresh in (False, True):
            for job, why in _SENSELESS:
                with refused(q, "FL005", "job 2 of 3 ", why, what=repr(job)):
                    jobs = Json([{"task": "good"}, job, {"task": "good"}])
                    q.execute("select from faultline.enqueue_many(%s, fresh => %s)", jobs, fresh)
        with refused(q, "FL005", "array"):
            q.execute("""select from faultline.enqueue_many('{"task": "t"}')""")
        with refused(q, "FL005", "array"):
            q.execute("select from faultline.enqueue_many(null)")
        expect("jobs", q.value("select count(*) from faultline.jobs"), 0)


@probe("enqueue", "parse_new_jobs", "enqueue_many")
def plain_sql_is_a_client_too(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        job_id = q.value(
            """select faultline.enqueue('mail', '{"to": "ada"}', queue => 'post', priority => -5, delay => '90 s',"""
            " max_attempts => 3, lease => '7 s', idempotency_key => 'k', id => %s, keep_args => false)",
            numbered_id(7),
        )
        job = q.job(job_id)
        found = (job.id, job.state.value, job.queue, job.task, job.priority, job.args, job.idempotency_key)
        expect("the job", found, (numbered_id(7), "queued", "post", "mail", -5, {"to": "ada"}, "k"))
        expect("attempts and token", (job.attempt, job.max_attempts, job.fencing_token), (0, 3, 0))
        expect("due", job.next_run_at, job.created_at + timedelta(seconds=90))
        kept = q.execute("select lease_seconds, keep_args from faultline.open_jobs")
        expect("lease and what is kept", kept, [(7.0, False)])
        timed = q.value("select faultline.enqueue('mail', run_at => '2030-01-01Z')")
        due = q.value("select next_run_at = '2030-01-01Z' from faultline.open_jobs where id = %s", timed)
        expect("due at the time given", due, True)


@probe("new_id", "enqueue_many", "insert_or_find_jobs")
def answers_and_ids_come_in_the_order_given(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        ids = []
        for part in (range(50), range(50, 100)):
            placed = q.run(verbs.enqueue_many([Submission(f"task-{n}") for n in part]))
            ids += [place.job_id for place in placed]
        tasks: dict[Any, str] = dict(q.execute("select id, task from faultline.open_jobs"))
        expect("tasks", [tasks[job_id] for job_id in ids], [f"task-{n}" for n in range(100)])
        expect("ids", ids, sorted(set(ids)))
        expect("their version", {job_id.version for job_id in ids}, {7})
    with q.unsaved():
        q.execute("do $$ begin for n in 1..50 loop perform faultline.enqueue('task-' || n); end loop; end $$")
        rows = q.execute("select task from faultline.open_jobs order by next_run_at, id")
        expect("tasks enqueued in a loop", [task for (task,) in rows], [f"task-{n}" for n in range(1, 51)])


@probe("new_id")
def ids_of_one_microsecond_are_in_the_order_of_their_positions(sessions: Sessions) -> None:
    """On servers that have no uuidv7() of their own. The position stands behind the time."""
    q = sessions.open()
    if q.connection.info.server_version < _SINCE_UUIDV7:
        ids = "select substr(faultline.new_id(n)::text, 20, 6) from unnest(array[257, 65537]) n"
        expect("positions", [found for (found,) in q.execute(ids)], ["8010-1", "9000-1"])


# Keys


@probe("insert_or_find_jobs", "resolve_known", "enqueue_many", "keys")
def the_same_key_gives_the_same_job_whatever_became_of_it(sessions: Sessions) -> None:
    q = sessions.open()
    for ending in ("queued", "succeeded", "failed", "cancelled"):
        with q.unsaved():
            first = q.enqueue(args={"n": 1}, idempotency_key="order:1")
            if ending == "succeeded":
                q.complete(q.claim_one())
            elif ending != "queued":
                q.fail(q.claim_one(), then="fail" if ending == "failed" else "cancel")
            again = q.run(verbs.enqueue_many([Submission("t", '{"n": 1}', idempotency_key="order:1")]))[0]
            expect(f"the job, {ending}", (again.job_id, again.created), (first, False))
            expect("jobs", q.value("select array_agg(state) from faultline.jobs"), [ending])


@probe("resolve_known", "digest", "insert_or_find_jobs")
def the_same_key_or_id_for_other_work_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    for known, word in (({"idempotency_key": "k"}, "idempotency_key"), ({"id": numbered_id(7)}, "its id")):
        for done in (False, True):
            with q.unsaved():
                job_id = q.enqueue("t", {"n": 1}, **known)
                if done:
                    q.complete(q.claim_one())
                for task, args in (("t", {"n": 2}), ("other", {"n": 1})):
                    with refused(q, "FL003", word, what=f"{task} {args} under a known {word}"):
                        q.enqueue(task, args, **known)
                expect("jobs", q.value("select array_agg(id) from faultline.jobs"), [job_id])


@probe("resolve_known", "digest", "insert_or_find_jobs")
def what_a_caller_says_must_be_the_same_is_compared_too(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        first = Submission("t", idempotency_key="k", digest="one")
        job_id = q.run(verbs.enqueue_many([first]))[0].job_id
        again = q.run(verbs.enqueue_many([first]))[0]
        expect("again", (again.job_id, again.created), (job_id, False))
        for other in ({"digest": "two"}, {"digest": None}, {"task": "u"}):
            with refused(q, "FL003", "job 2 ", "idempotency_key", what=f"with {other}"):
                q.run(verbs.enqueue_many([Submission("new"), replace(first, **other)]))
        expect("jobs", q.value("select array_agg(id) from faultline.jobs"), [job_id])
        many = [Submission("t", idempotency_key=f"of {n}", digest=str(n), id=numbered_id(n)) for n in (2, 1, 3)]
        q.run(verbs.enqueue_many(many))
        expect("each with its own", [placed.created for placed in q.run(verbs.enqueue_many(many))], [False] * 3)


@probe("resolve_known")
def a_job_that_kept_no_arguments_is_known_by_its_task(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease(args={"n": 1}, id=numbered_id(7), keep_args=False)
        q.complete(lease)
        expect("the job", q.enqueue(args={"n": 1}, id=lease.job_id), lease.job_id)
        with refused(q, "FL003", "its id"):
            q.enqueue("other", {"n": 1}, id=lease.job_id)
        keyed = q.new_lease(args={"n": 1}, idempotency_key="k", keep_args=False)
        q.complete(keyed)
        with refused(q, "FL003", "idempotency_key", what="other arguments under the key of a job that kept none"):
            q.enqueue("t", {"n": 2}, idempotency_key="k")


@probe("resolve_known")
def no_arguments_are_an_empty_object(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for args in ("null", "null"):
            q.execute("select faultline.enqueue('t', %s::jsonb, id => %s)", args, numbered_id(7))
        expect("arguments", q.job(numbered_id(7)).args, {})
        q.enqueue(args={"n": 1}, id=numbered_id(8))
        with refused(q, "FL003", "its id", what="no arguments under the id of a job that has some"):
            q.execute("select faultline.enqueue('t', 'null', id => %s)", numbered_id(8))


@probe("insert_or_find_jobs", "resolve_known")
def a_key_used_twice_in_one_submission_makes_one_job(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        same = Submission("t", idempotency_key="k")
        placed = q.run(verbs.enqueue_many([same, Submission("t"), same]))
        expect("the same job", placed[0].job_id == placed[2].job_id, True)
        expect("new", [place.created for place in placed], [True, True, False])
        expect("jobs", q.value("select count(*) from faultline.jobs"), 2)


# Ids


@probe("insert_or_find_jobs", "delete_already_completed", "enqueue_many")
def a_submission_sent_again_makes_one_job(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        jobs = [Submission("t", id=numbered_id(n)) for n in (1, 2)]
        q.run(verbs.enqueue_many(jobs[:1]))
        expect("new", [place.created for place in q.run(verbs.enqueue_many(jobs))], [False, True])
        q.complete(q.claim_one())
        expect("new", [place.created for place in q.run(verbs.enqueue_many(jobs))], [False, False])
        expect("states", q.value("select array_agg(state order by id) from faultline.jobs"), ["succeeded", "queued"])


@probe("insert_or_find_jobs")
def an_id_stands_once_in_a_submission(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for task in ("a", "b"):
            with refused(q, "FL005", "two of its jobs have the same id"):
                q.run(verbs.enqueue_many([Submission("a", id=numbered_id(7)), Submission(task, id=numbered_id(7))]))
        q.enqueue("a", idempotency_key="k")
        led_away = Submission("a", id=numbered_id(7), idempotency_key="k")
        with refused(q, "FL005", "two of its jobs have the same id"):
            q.run(verbs.enqueue_many([led_away, Submission("b", id=numbered_id(7))]))


@probe("enqueue_many")
def a_fresh_submission_is_believed_but_for_keys(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved(), refused(q, "FL005", "cannot have idempotency keys"):
        jobs = Json([{"task": "t", "idempotency_key": "k"}])
        q.execute("select from faultline.enqueue_many(%s, fresh => true)", jobs)


@probe("enqueue_many")
def a_fresh_submission_has_no_arguments_that_jsonb_cannot_hold(sessions: Sessions) -> None:
    q = sessions.open()
    for value in ('"\\u0000"', "1e400000", "9" * 200_000):
        with refused(q, "FL005", "job 1 of 1", what=value[:10]):
            jobs = f'[{{"task": "t", "args": {{"a": {value}}}}}]'
            q.execute("select from faultline.enqueue_many(%s::text, fresh => true)", jobs)


@probe("insert_or_find_jobs", "prune", "settings", "guards.sql")
def an_id_that_was_pruned_never_sees_an_old_token(sessions: Sessions) -> None:
    q = sessions.open()
    for ending, what in (("succeeded", "ledger"), ("failed", "failed")):
        with q.unsaved():
            lease = q.new_lease(id=numbered_id(7))
            q.release(lease)
            last = q.claim_one()
            q.complete(last) if ending == "succeeded" else q.fail(last, then="fail")
            short = q.new_lease()
            q.run(verbs.prune(what, older_than_seconds=0))
            q.complete(short) if ending == "succeeded" else q.fail(short, then="fail")
            q.run(verbs.prune(what, older_than_seconds=0))
            q.enqueue(id=lease.job_id)
            expect(f"the next token of a {ending} job", q.claim_one().fencing_token, 3)


# Who is told


def _awake(sessions: Sessions, *, sleeping: tuple[str, ...] = ()) -> Session:
    q = sessions.open()
    q.execute("listen faultline")
    q.heartbeat(sleeping=sleeping)
    return q


@probe("enqueue_many", "wake", "heartbeat")
def an_enqueue_wakes_who_sleeps_and_nobody_else(sessions: Sessions) -> None:
    q = _awake(sessions)
    q.enqueue()
    expect("told while all are awake", q.notices(), [])
    q.heartbeat(sleeping=["default"])
    q.enqueue(queue="other")
    q.enqueue(delay_seconds=60)
    q.run(verbs.enqueue_many([Submission("t", queue="a"), Submission("t", queue="z")]))
    expect("told of other queues and of later", q.notices(), [])
    q.enqueue(priority=-3)
    notice = the_one("notifications", q.notices())
    expect("told", '"queue":"default","priority":-3' in notice, True)
    q.run(verbs.enqueue_many([Submission("t", queue="a"), Submission("t"), Submission("t", queue="z")]))
    expect("told of several queues", len(q.notices()), 1)


@probe("enqueue_many")
def who_is_awake_is_told_of_what_had_to_wait_for_a_key(sessions: Sessions) -> None:
    q, holder = _awake(sessions), sessions.open()
    holder.begin()
    holder.enqueue(idempotency_key="k")
    waiting = q.start(lambda s: s.enqueue(idempotency_key="k"))
    sessions.wait_until_blocked(q, waiting)
    holder.execute("select pg_sleep(0.06)")
    holder.rollback()
    waiting.result()
    expect("told", len(q.notices()), 1)


@probe("enqueue_many")
def a_worker_with_an_endless_name_is_no_reason_to_refuse_a_job(sessions: Sessions) -> None:
    q = sessions.open()
    for number in range(25):
        q.heartbeat(f"{number:02}" + "\x07" * 98, sleeping=["default"])
    expect("jobs", len(q.run(verbs.enqueue_many([Submission("t")] * 20))), 20)


@probe("enqueue_many", "wake")
def a_few_jobs_wake_a_few_workers_that_were_seen_lately(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    q.execute("listen faultline")
    q.heartbeat("stalled", sleeping=["default"])
    sessions.clock.advance(4)
    lively = [f"w{number}" for number in range(8)]
    for worker in lively:
        q.heartbeat(worker, sleeping=["default"])

    def told(*jobs: Submission, **words: Any) -> list[str] | None:
        q.run(verbs.enqueue_many(jobs, **words))
        some = jsontext.decode(the_one("notifications", q.notices())).get("workers")
        return None if some is None else sorted(some)

    # A statement that the machine let wait for 50 ms tells everybody, as it should.
    tries = [some for some in (told(Submission("t")) for _ in range(40)) if some is not None]
    expect("of how many", {len(set(some)) for some in tries}, {3})
    expect("all of them in time", sorted(set().union(*tries)), lively)
    four = [some for some in (told(*[Submission("t")] * 4) for _ in range(4)) if some is not None]
    expect("for four jobs", {len(some) for some in four}, {6})
    expect("for many", told(*[Submission("t")] * 21), None)
    expect("for what appears late", told(Submission("t"), appears_late=True), None)
    past = q.value("select faultline.now() - interval '1 hour'")
    expect("for what lies in the past", told(Submission("t", run_at=past)), None)
    sessions.clock.advance(4)
    expect("where nobody was seen lately", told(Submission("t")), None)


@probe("enqueue_many", "wake")
def a_hint_for_a_few_new_jobs_names_them(sessions: Sessions) -> None:
    q = _awake(sessions, sleeping=("default",))

    def named(*jobs: Submission, **words: Any) -> tuple[list[str], Any]:
        placed = q.run(verbs.enqueue_many(jobs, **words))
        notices = [jsontext.decode(notice) for notice in q.notices()]
        return [str(one.job_id) for one in placed], notices[0].get("ids") if notices else None

    # A statement that the machine let wait for 50 ms tells everybody, and names no job.
    tries = [named(Submission("t"), Submission("t")) for _ in range(5)]
    expect("two jobs", any(ids == hinted for ids, hinted in tries), True)
    expect("another", [hinted for ids, hinted in tries if hinted not in (None, ids)], [])
    expect("jobs of two queues", named(Submission("t"), Submission("t", queue="z"))[1], None)
    expect("what appears late", named(Submission("t"), appears_late=True)[1], None)
    _, first = min((named(Submission("t", idempotency_key=f"k{n}")) for n in range(5)), key=lambda one: one[1] is None)
    expect("a new job with a key", first is not None, True)
    expect("one that is known already", named(Submission("t", idempotency_key="k0"), Submission("t"))[1], None)


@probe("enqueue_many")
def who_is_awake_is_told_of_what_appears_below_his_place(sessions: Sessions) -> None:
    q = _awake(sessions)
    q.run(verbs.enqueue_many([Submission("t")], appears_late=True))
    expect("told of what is said to appear late", len(q.notices()), 1)
    past = q.value("select now() - interval '1 hour'")
    q.enqueue(run_at=past)
    expect("told of a time in the past", len(q.notices()), 1)
    # All in one message to the server: no time passes by which it could be told from a single statement.
    jobs = """faultline.enqueue_many('[{"task": "t"}]')"""
    q.execute(f"begin; select pg_current_xact_id(); select from {jobs}; select from {jobs}; commit")
    expect("told by a transaction that has written", len(q.notices()), 1)
    q.begin()
    q.execute("select pg_sleep(0.006)")
    q.enqueue()
    began = q.value("select transaction_timestamp()")
    q.commit()
    notice = the_one("notifications", q.notices())
    shown = q.value("select to_json(%s::timestamptz)::text", began)
    expect("told by a transaction that has lasted", shown in notice, True)


@probe("enqueue_many", "enqueue_one", "insert_one", "insert_or_find_jobs", "parse_new_jobs", "views.sql")
def a_job_keeps_the_trace_it_was_enqueued_in(sessions: Sessions) -> None:
    q = sessions.open()
    job = Submission("t", trace="t" * 60)
    for how, statement in (
        ("plain", verbs.enqueue_many([job], Ids(lambda: 0.0, random.Random(1)))),  # noqa: S311 - ids of a story
        ("fresh", verbs.enqueue_many([job, job], Ids(lambda: 0.0, random.Random(2)))),  # noqa: S311 - likewise
        ("known", verbs.enqueue_many([job])),
    ):
        for placed in q.run(statement):
            expect(f"the trace of a {how} job", q.run(views.traces([placed.job_id])), {placed.job_id: "t" * 55})
    (untraced,) = q.run(verbs.enqueue_many([Submission("t")]))
    expect("the trace of none", q.run(views.traces([untraced.job_id])), {})

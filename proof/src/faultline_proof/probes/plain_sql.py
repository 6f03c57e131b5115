"""What becomes of a job that plain SQL enqueues: `select faultline.enqueue(…)`, in a loop or a trigger as well."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from psycopg.types.json import Json, Jsonb

from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import jsontext, verbs
from faultline_proof.probes.probe import expect, probe, refused, the_one
from faultline_proof.sessions import numbered_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline_proof.sessions import Session, Sessions

#: What stands after the task, and what is said of it.
_SENSELESS = (
    ("'[1]'", "not a JSON object"),
    ("'1'", "not a JSON object"),
    ("""json_build_object('x', repeat('y', 2000))::text""", "more than the limit of 2000"),
    # long only when it is written out
    ("""('{"x": [' || repeat('1e9999,', 200) || '1]}')::jsonb""", "more than the limit of 2000"),
    ("'{}', queue => ''", "the name of its queue is empty"),
    ("'{}', queue => repeat('q', 101)", "longer than 100"),
    ("'{}', queue => ' q'", "white space"),
    ("'{}', priority => 1001", "priority is outside"),
    ("'{}', max_attempts => 0", "max_attempts is outside"),
    ("'{}', lease => '0'", "lease is outside"),
    ("'{}', lease => '25 hours'", "lease is outside"),
    ("'{}', delay => '-1 s'", "delay is negative"),
    ("'{}', delay => '11 years'", "longer than ten years"),
    ("'{}', delay => '170000000 years'", "its delay is"),
    ("'{}', delay => '-170000000 years'", "its delay is"),
    ("'{}', delay => '1 s', run_at => '2030-01-01Z'", "both a delay and a run_at"),
    ("'{}', run_at => '0044-03-15Z'", "outside the years 1970 to 9998"),
    ("'{}', run_at => '20000-01-01Z'", "outside the years 1970 to 9998"),
    ("'{}', id => '6f1c2b9e-0d7a-4c3e-9a51-1f0e8d2c7b44'", "its id is not a UUID of version 7"),
    ("'{}', idempotency_key => ''", "idempotency_key is empty"),
)

#: A wrong job, and what is said of it.
_WRONG_JOBS = (
    ("1", " (task without name) is refused: it is not a JSON object"),
    ("[]", " (task without name) is refused: it is not a JSON object"),
    ("null", "it is not a JSON object"),
    ('{"priorty": 1}', " (task without name) is refused: it has no task"),
    ('{"task": "t", "delay": 5, "key": "k"}', 'no job has a field "delay"'),
    ('{"task": "t", "priorty": 1}', ' (task t) is refused: no job has a field "priorty"'),
    ('{"task": "t", "created_at": "2030-01-01T00:00:00Z"}', 'no job has a field "created_at"'),
    ('{"task": "t", "next_run_at": "2030-01-01T00:00:00Z"}', 'no job has a field "next_run_at"'),
    ('{"task": "t", "priority": "high"}', ' is refused: its priority: invalid input syntax for type numeric: "high"'),
    ('{"task": "t", "keep_args": "maybe"}', " is refused: its keep_args: invalid input syntax for type boolean"),
    ('{"task": "t", "id": "abc"}', " is refused: its id: invalid input syntax for type uuid"),
    ('{"task": "t", "run_at": "never Z"}', " is refused: its run_at: invalid input syntax for type timestamp"),
    ('{"task": "t", "run_at": "2030-13-45T00:00:00Z"}', " is refused: its run_at: date/time field value out of range"),
    ('{"task": "t\\u0000"}', " is refused: unsupported Unicode escape"),
    ('{"task": "t", "args": {"a": 1e400000}}', " is refused: its args: value overflows numeric format"),
    ('{"task": "t", "args": {"a": "\\u0000"}}', " is refused: unsupported Unicode escape"),
)


@probe("enqueue", "args")
def plain_sql_is_given_what_it_asks_for(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.execute(
            """select faultline.enqueue('mail', '{"b" : 1e16, "a": -0.0}', queue => 'post', priority => -5,"""
            " delay => '90 s', max_attempts => 3, lease => '7 s', keep_args => false)"
        )
        ((task, args, queue, priority, attempts, lease, kept, due),) = q.execute(
            "select task, args::text, queue, priority, max_attempts, lease_seconds, keep_args, next_run_at - created_at"
            " from faultline.open_jobs"
        )
        expect("task and queue", (task, queue, args), ("mail", "post", '{"b" : 1e16, "a": -0.0}'))
        expect("options", (priority, attempts, lease, kept, due), (-5, 3, 7.0, False, timedelta(seconds=90)))
    with q.unsaved():
        q.execute("select faultline.enqueue('mail', '{}', run_at => '2030-01-01Z')")
        expect("due at the time given", q.value("select next_run_at = '2030-01-01Z' from faultline.open_jobs"), True)
    for kind in (Json, Jsonb):
        with q.unsaved():
            q.execute("select faultline.enqueue('mail', %s)", kind({"a": 1}))
            expect(f"arguments that are {kind.__name__}", q.value("select args from faultline.open_jobs"), {"a": 1})


#: JSON to Python, and nothing to PostgreSQL.
_NOT_STORABLE = ('"\\u0000"', '"\\ud800"', "1e400000", "-1e-400000", "9" * 200_000, "NaN", "[" * 50_000)


@probe("enqueue", "enqueue_many", "reject_job", "read_jobs")
def arguments_that_cannot_be_stored_are_refused_by_every_verb(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for value in _NOT_STORABLE:
            args = f'{{"a": {value}}}'
            for key in (None, "k"):
                own = "" if key is None else ', "idempotency_key": "k"'
                with refused(q, "FL005", "refused", what=f"{value[:20]} under the key {key}"):
                    q.execute("select faultline.enqueue('t', %s, idempotency_key => %s)", args, key)
                with refused(q, "FL005", "refused", what=f"a document with {value[:20]} under the key {key}"):
                    q.execute("select from faultline.enqueue_many(%s)", f'[{{"task": "t", "args": {args}{own}}}]')
        for known in ({"idempotency_key": "k"}, {"id": UUID(int=7)}):
            with refused(q, "FL005", "job 1 of 1 is refused: its args: value overflows numeric format"):
                q.run(verbs.enqueue_many([Submission("t", '{"a": 1e400000}', **known)]))
        expect("jobs", q.value("select count(*) from faultline.jobs"), 0)


_WAYS_TO_CALL = (
    "select faultline.enqueue('t')",
    "select faultline.enqueue('t', '{}')",
    "select faultline.enqueue('t', jsonb_build_object('a', 1))",
    "select faultline.enqueue('t', '{}'::jsonb, 'q', 1)",
    "select faultline.enqueue('t', json_build_object('a', 1))",
    "select faultline.enqueue('t', row_to_json(row(1)), priority => 1)",
    "select faultline.enqueue('t', null::json)",
    "select faultline.enqueue(task => 't', queue => 'q')",
    "select faultline.enqueue(task => 't', args => '{}', queue => 'q')",
    "select faultline.enqueue('t', null)",
    "select faultline.enqueue('t', '{}', null, null, null, null, null, null, null, null, null)",
    'select job_id from faultline.enqueue_many(\'[{"task": "t"}]\')',
    "select job_id from faultline.enqueue_many(json_build_array(json_build_object('task', 't')), false)",
)


@probe("enqueue", "enqueue_many")
def every_way_to_call_it_goes_on_working(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for call in _WAYS_TO_CALL:
            job = q.job(q.value(call))
            expect(call, (job.task, job.max_attempts, job.fencing_token), ("t", 5, 0))
        q.execute("set local standard_conforming_strings = off")
        q.execute("select faultline.enqueue('t', '{}')")
        with refused(q, "FL005", "unsupported Unicode escape", what="a NUL where backslashes are escapes"):
            q.execute("select faultline.enqueue('t', %s)", '{"a": "\\u0000"}')


@probe("enqueue", "reject_job")
def plain_sql_is_told_what_is_wrong(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.execute("update faultline.settings set args_bytes_max = 2000")
        for task in ("", "x" * 201):
            with refused(q, "FL005"):
                q.execute("select faultline.enqueue(%s, '{}')", task)
        for options, why in _SENSELESS:
            with refused(q, "FL005", why, what=options):
                q.execute(f"select faultline.enqueue('t', {options})")
        for value in _NOT_STORABLE:
            with refused(q, "FL005", "its args cannot be stored", what=value[:20]):
                q.execute("select faultline.enqueue('t', %s)", f'{{"a": {value}}}')
        expect("jobs", q.value("select count(*) from faultline.jobs"), 0)
        q.execute("select faultline.enqueue('t', json_build_object('x', repeat('y', 1500))::text)")
        expect("jobs", q.value("select count(*) from faultline.jobs"), 1)


@probe("read_jobs", "enqueue_many", "reject_job")
def a_submission_that_makes_no_sense_is_refused_with_the_job_and_the_reason(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for wrong, why in _WRONG_JOBS:
            # Alone, and before another one that is wrong.
            for jobs, more in ((2, ""), (3, ', {"task": "t", "id": "x"}')):
                for kind in ("text", "json"):
                    with refused(q, "FL005", f"job 2 of {jobs}", why, what=wrong):
                        all_of_them = f'[{{"task": "t"}}, {wrong}{more}]'
                        q.execute(f"select from faultline.enqueue_many(%s::{kind})", all_of_them)
        for documents, why in (
            (("{}", "1", "null", None), "jobs must be a JSON array"),
            (("", "x", "[", '[{"task": "t"}'), "the jobs are refused: invalid input"),
        ):
            for document in documents:
                with refused(q, "FL005", why, what=repr(document)):
                    q.execute("select from faultline.enqueue_many(%s::text)", document)
        expect("jobs", q.value("select count(*) from faultline.jobs"), 0)


@probe("enqueue", "insert_or_find_jobs")
def plain_sql_knows_keys_and_ids(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for known in ("idempotency_key => 'k'", f"id => '{numbered_id(7)}'"):
            made = [q.value(f"select faultline.enqueue('t', '{{}}', {known})") for _ in range(2)]
            expect(known, len(set(made)), 1)
        expect("jobs", q.value("select count(*) from faultline.jobs"), 2)


# One plain job of a program


#: What `enqueue_one` takes behind the id, and what is said of a wrong one.
_ONE = {
    "task": "t", "args": "{}", "queue": "default", "priority": 0, "max_attempts": 5, "lease_seconds": 30.0,
    "keep_args": True, "trace": None,
}  # fmt: skip
_WRONG_ONES: tuple[tuple[str, Any, str], ...] = (
    ("id", "6f1c2b9e-0d7a-4c3e-9a51-1f0e8d2c7b44", "its id is not a UUID of version 7"),
    ("task", "", "it has no task"),
    ("task", "x" * 201, "longer than 200"),
    ("queue", "", "the name of its queue is empty"),
    ("queue", "q" * 101, "longer than 100"),
    ("queue", " q", "white space"),
    ("args", "[1]", "not a JSON object"),
    ("args", f'{{"x": "{"y" * 2000}"}}', "more than the limit of 2000"),
    ("args", '{"x": "\\u0000"}', "unsupported Unicode escape"),
    ("args", "{", "its args are not JSON"),
    ("priority", 1001, "priority is outside"),
    ("max_attempts", 0, "max_attempts is outside"),
    ("lease_seconds", 0.0, "lease is outside"),
)


def _enqueue_one(q: Session, *, fresh: bool = True, **given: Any) -> Any:
    values = {"id": str(numbered_id(7)), **_ONE, **given}
    return q.value(
        "select faultline.enqueue_one(%s::uuid, %s, %s, %s, %s::integer, %s::integer, %s::numeric, %s, %s, %s)",
        *values.values(),
        fresh,
    )


def _stored(q: Session) -> list[tuple[Any, ...]]:
    return q.execute(
        "select id, task, args::text, queue, priority, max_attempts, lease_seconds, keep_args, trace,"
        " next_run_at = created_at from faultline.open_jobs"
    )


@probe("enqueue_one", "insert_one")
def one_plain_job_is_stored_as_it_was_given(sessions: Sessions) -> None:
    """Whether its id is new, or may have been sent before."""
    q = sessions.open()
    given = {
        "task": "mail", "args": '{"b" : 1e16}', "queue": "post", "priority": -5, "max_attempts": 3, "lease_seconds": 7.0,
        "keep_args": False, "trace": "t" * 60,
    }  # fmt: skip
    wanted = [(numbered_id(7), *given.values(), True)]
    wanted[0] = (*wanted[0][:8], "t" * 55, True)
    for fresh in (True, False):
        with q.unsaved():
            expect(f"new, fresh {fresh}", _enqueue_one(q, fresh=fresh, **given), True)
            expect(f"stored, fresh {fresh}", _stored(q), wanted)
            expect("sent again", _enqueue_one(q, fresh=False, **given), False)
            expect("jobs", len(_stored(q)), 1)


@probe("enqueue_one", "enqueue_many", "reject_job")
def one_job_that_makes_no_sense_is_refused_with_the_reason(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.execute("update faultline.settings set args_bytes_max = 2000")
        for name, value, why in _WRONG_ONES:
            with refused(q, "FL005", "job 1 of 1", why, what=f"{name} {value!r:.40}"):
                _enqueue_one(q, **{name: value})
        expect("jobs", _stored(q), [])
        _enqueue_one(q, args=f'{{"x": "{"y" * 1500}"}}')
        expect("jobs", len(_stored(q)), 1)
        with refused(q, "23505", what="an id that was sent before, called fresh"):
            _enqueue_one(q)


@probe("enqueue_one")
def the_space_around_the_arguments_of_one_job_is_not_stored(sessions: Sessions) -> None:
    q = sessions.open()
    for sent in ("{} ", " {}"):
        with q.unsaved():
            _enqueue_one(q, args=sent)
            expect(f"of {sent!r}", _stored(q)[0][2], "{}")


@probe("insert_one")
def one_job_whose_insert_has_waited_is_told_to_the_awake(sessions: Sessions) -> None:
    """By then they may have claimed what came after it."""
    q, holder, listener = sessions.open(), sessions.open(), sessions.open()
    listener.execute("listen faultline")
    listener.heartbeat()
    holder.begin()
    holder.execute("lock table faultline.open_jobs in share mode")
    waiting = q.start(_enqueue_one)
    sessions.wait_until_blocked(q, waiting)
    holder.execute("select pg_sleep(0.06)")
    holder.commit()
    waiting.result()
    expect("told", [one.get("workers") for one in _told(listener)], [None])


# Text


_SENT = '{"z" : 1e16, "a":[-0.0,1.50], "b": [' + ", ".join(["1e300"] * 200) + "]}"


@probe("enqueue_many", "enqueue_one", "read_jobs", "parse_new_jobs", "enqueue", "args")
def the_text_of_arguments_is_kept_as_it_was_sent(sessions: Sessions) -> None:
    """Whichever way it comes. As jsonb it has other numbers and another order, and is over the limit."""
    q = sessions.open()
    for how, query, params in _ways_to_enqueue(_SENT):
        with q.unsaved():
            q.execute("update faultline.settings set args_bytes_max = %s", len(_SENT))
            q.execute(query, *params)
            expect(f"the text, {how}", q.value("select args::text from faultline.open_jobs"), _SENT)


def _ways_to_enqueue(text: str) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    for how, job, ids in (
        ("fresh", Submission("t", text), Ids(lambda: 0.0, random.Random(1))),  # noqa: S311 - ids of a story
        ("without an id", Submission("t", text), None),
        ("with an id", Submission("t", text, id=numbered_id(7)), None),
        ("with a key", Submission("t", text, idempotency_key="k"), None),
    ):
        sent = verbs.enqueue_many([job], ids)
        yield how, sent.sql, tuple(sent.params)
    yield "a document of json", "select from faultline.enqueue_many(%s::json)", (f'[{{"task": "t", "args": {text}}}]',)
    for kind in ("text", "json"):
        for how, option in (("plain", ""), ("with a key", ", idempotency_key => 'k'")):
            yield f"plain sql, {kind}, {how}", f"select faultline.enqueue('t', %s::{kind}{option})", (text,)


@probe("digest", "resolve_known")
def a_key_does_not_ask_how_the_arguments_were_written(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        texts = ('{"a": 1e16, "b": 1.0}', '{"b": 1.0, "a": 10000000000000000}', '{ "a" :1e16,"b":1.0}')
        placed = [q.run(verbs.enqueue_many([Submission("t", text, idempotency_key="k")]))[0] for text in texts]
        expect("one job", len({place.job_id for place in placed}), 1)
        with refused(q, "FL003", "idempotency_key"):
            q.run(verbs.enqueue_many([Submission("t", '{"a": 2, "b": 1.0}', idempotency_key="k")]))


# Time


@probe("claim", "reap", "enqueue", "enqueue_one", "enqueue_many")
def time_goes_on_in_a_loop(sessions: Sessions) -> None:
    """All of it is one statement for PostgreSQL."""
    q = sessions.open()
    q.execute(
        "create table story.seen (what text, jobs bigint);"
        "do $$ begin"
        " perform pg_sleep(0.15);"
        " perform faultline.enqueue('t', '{}', lease => '0.1 s');"
        """ perform faultline.enqueue_many('[{"task": "t", "lease_seconds": 0.1}]');"""
        " perform faultline.enqueue_one(faultline.new_id(1), 't', '{}', 'default', 0, 5, 0.1, true, null, true);"
        " insert into story.seen select 'enqueued', count(*) from faultline.open_jobs"
        " where created_at > statement_timestamp() + interval '0.1 s';"
        " insert into story.seen select 'claimed', count(*) from faultline.claim('default', 'w/1', 10);"
        " insert into story.seen select 'held', count(*) from faultline.open_jobs"
        " where lease_expires_at > statement_timestamp() + interval '0.2 s';"
        " perform faultline.complete(array_agg(id), array_agg(fencing_token), array_agg(lease_owner))"
        " from (select * from faultline.open_jobs limit 1) one;"
        " insert into story.seen select 'completed', count(*) from faultline.ledger where finished_at >= claimed_at;"
        " perform pg_sleep(0.2);"
        " insert into story.seen select 'reaped', count(*) from faultline.reap();"
        " end $$"
    )
    try:
        seen = dict(q.execute("select what, jobs from story.seen"))
    finally:
        q.execute("drop table story.seen")
    expect("in a loop", seen, {"enqueued": 3, "claimed": 3, "held": 3, "completed": 1, "reaped": 2})


# Who is told


def _told(q: Session, *statements: str) -> list[dict[str, object]]:
    for statement in statements:
        q.execute(statement)
    return [jsontext.decode(notice) for notice in q.notices()]


@probe("enqueue", "wake", "insert_one")
def plain_sql_wakes_who_sleeps_and_nobody_else(sessions: Sessions) -> None:
    q = sessions.open()
    q.execute("listen faultline")
    q.heartbeat()
    expect("while all are awake", _told(q, "select faultline.enqueue('t')"), [])
    q.heartbeat(sleeping=["default"])
    expect("of another queue", _told(q, "select faultline.enqueue('t', queue => 'other')"), [])
    expect("of later", _told(q, "select faultline.enqueue('t', delay => '60 s')"), [])
    notice = the_one("notifications", _told(q, "select faultline.enqueue('t', priority => -3)"))
    expect("told", (notice["queue"], notice["priority"], notice["workers"]), ("default", -3, ["w"]))
    expect("of which job", notice["ids"], [q.value("select id::text from faultline.open_jobs where priority = -3")])


@probe("enqueue", "wake", "insert_one")
def plain_sql_tells_the_awake_of_what_appears_below_their_place(sessions: Sessions) -> None:
    q = sessions.open()
    q.execute("listen faultline")
    q.heartbeat()
    past = _told(q, "select faultline.enqueue('t', run_at => now() - interval '1 hour')")
    expect("of a time in the past", [notice.get("workers") for notice in past], [None])
    # All in one message to the server: no time passes by which it could be told from a single statement.
    written = "begin; select pg_current_xact_id(); select faultline.enqueue('t'); select faultline.enqueue('t'); commit"
    expect("by a transaction that has written", [one.get("workers") for one in _told(q, written)], [None])
    other = written.replace("enqueue('t')", "enqueue('t', queue => 'other')")
    expect("of a queue that nobody serves", _told(q, other), [])
    q.begin()
    q.execute("select pg_sleep(0.006)")
    began = q.value("select to_json(transaction_timestamp())")
    q.execute("select faultline.enqueue('t')")
    q.commit()
    notice = the_one("notifications", _told(q))
    expect("by a transaction that has lasted", notice["run_at"], began)
    lasted = _told(q, "do $$ begin perform pg_sleep(0.06); perform faultline.enqueue('t'); end $$")
    expect("by a loop that has lasted", [one.get("workers") for one in lasted], [None])


@probe("enqueue", "wake", "insert_one")
def plain_sql_wakes_a_few_workers_that_were_seen_lately(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    q.execute("listen faultline")
    q.heartbeat("stalled", sleeping=["default"])
    sessions.clock.advance(4)
    lively = [f"w{number}" for number in range(8)]
    for worker in (*lively, "\x07" * 99):
        q.heartbeat(worker, sleeping=["default"])
    tries = [the_one("notifications", _told(q, "select faultline.enqueue('t')"))["workers"] for _ in range(40)]
    expect("how many", {len(some) for some in tries if isinstance(some, list)}, {3})
    expect("all of them in time", sorted({one for some in tries if isinstance(some, list) for one in some}), lively)
    sessions.clock.advance(4)
    late = the_one("notifications", _told(q, "select faultline.enqueue('t')"))
    expect("where none was seen lately", late.get("workers"), None)


@probe("wake", "cancel")
def a_transaction_can_do_without_notifications(sessions: Sessions) -> None:
    q = sessions.open()
    q.execute("listen faultline")
    q.heartbeat(sleeping=["default"])
    q.begin()
    q.execute("set local faultline.notify = off")
    q.execute("select faultline.enqueue('t')")
    q.enqueue()
    q.run(verbs.cancel(q.claim_one().job_id))
    q.commit()
    expect("told", q.notices(), [])
    q.enqueue()
    expect("told by the next one", len(q.notices()), 1)

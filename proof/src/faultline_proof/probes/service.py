"""What the HTTP service asks for: queues that a key is bound to, jobs retried together, the keys themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.store import verbs
from faultline.store.reads import failures
from faultline.store.reads.failures import FailedFilter
from faultline.store.verbs import access
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions


@probe("cancel", "retry", "not_open")
def a_job_of_another_queue_does_not_exist(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        done, failed, running = q.new_lease(), q.new_lease(), q.new_lease()
        q.complete(done)
        q.fail(failed, then="fail")
        for verb, job_id in (
            (verbs.cancel, running.job_id),
            (verbs.cancel, done.job_id),
            (verbs.retry, failed.job_id),
            (verbs.retry, done.job_id),
        ):
            with refused(q, "FL004", "no job"):
                q.run(verb(job_id, only_queues=["other"]))
            with refused(q, "FL004", "no job"):
                q.run(verb(job_id, only_queues=[]))
        with refused(q, "FL002", "has succeeded"):
            q.run(verbs.cancel(done.job_id, only_queues=["other", "default"]))
        q.run(verbs.cancel(running.job_id, only_queues=["other", "default"]))
        q.run(verbs.retry(failed.job_id, only_queues=["default"]))
        expect("states", (q.state(running.job_id), q.state(failed.job_id)), ("cancelled", "queued"))


def _failed(q: Session, count: int = 1, *, then: str = "fail", error: str = "boom", **fields: Any) -> list[UUID]:
    ids = [q.enqueue(**fields) for _ in range(count)]
    for lease in q.claim(count, queue=fields.get("queue", "default")):
        q.fail(lease, then=then, error=error)
    return ids


@probe("retry_failed")
def jobs_are_retried_together_by_queue_task_and_error(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        (wanted,) = _failed(q, task="a", queue="x", error="Timeout: 5 s")
        others = [
            *_failed(q, task="b", queue="x", error="Timeout: 5 s"),
            *_failed(q, task="a", queue="y", error="Timeout: 5 s"),
            *_failed(q, task="a", queue="x", error="Refused"),
            *_failed(q, task="a", queue="x", error="Timeout: 5 s", then="cancel"),
        ]
        which = FailedFilter("x", "a", "Timeout")
        preview = q.run(failures.count(which))
        expect("preview", (preview.jobs, preview.at_least), (1, False))
        expect("retried", q.run(failures.retry(which)).jobs, 1)
        expect("the job", q.state(wanted), "queued")
        expect("the others", [q.state(job_id) for job_id in others], ["failed", "failed", "failed", "cancelled"])
        expect("of no queue", q.run(failures.retry(FailedFilter(only_queues=["z"]))).jobs, 0)
        expect("of one queue", q.run(failures.retry(FailedFilter(only_queues=["y", "z"]))).jobs, 1)
        expect("of all queues", q.run(failures.retry(FailedFilter())).jobs, 2)
        expect("retried again", q.run(failures.retry(FailedFilter())).jobs, 0)


@probe("retry_failed", "error_kind")
def errors_that_differ_in_particulars_only_are_of_one_kind(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for error, kind in (
            ("Timeout: order 17 took 3.5 s\nTraceback 1", "Timeout: order … took … s"),
            ("no user 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01 at 0xFF01", "no user … at …"),
            ("no user deadbeef-5d3a-7b11-9f60-2a54c0de7f01", "no user …"),
            ("KeyError: 'ada' is not in \"mail\"", "KeyError: … is not in …"),
            ("can't open it, don't ask", "can't open it, don't ask"),
            ('it said "' + "x" * 1000, "it said …"),
            ("word " * 1000, ("word " * 30)),
            ("", ""),
            (None, ""),
        ):
            expect(f"kind of {str(error)[:40]}", q.value("select faultline.error_kind(%s)", error), kind)
        lines = [f"Timeout: order {'9' * length} took long, {'and longer, ' * 20}" for length in (1, 40)]
        kinds = {q.value("select faultline.error_kind(%s)", line) for line in lines}
        expect("kinds of one long line", len(kinds), 1)
        ids = [*_failed(q, error="Timeout: order 17"), *_failed(q, error="Timeout: order 18")]
        (other,) = _failed(q, error="Timeout: order none")
        expect("retried", q.run(failures.retry(FailedFilter(error_kind="Timeout: order …"))).jobs, 2)
        expect("states", [q.state(job_id) for job_id in (*ids, other)], ["queued", "queued", "failed"])


@probe("retry_failed")
def what_is_retried_together_goes_in_batches_from_the_newest_on(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    with q.unsaved():
        ids = sorted(_failed(q, 4))
        q.execute("update faultline.open_jobs set finished_at = faultline.now() where state = 'failed'")
        nothing = q.run(failures.retry(FailedFilter(), max_jobs=0))
        expect("nothing asked for", nothing.jobs, 0)
        first = q.run(failures.retry(FailedFilter(), max_jobs=2))
        expect("the first batch", (first.jobs, [q.state(i) for i in ids]), (2, ["failed", "failed", "queued", "queued"]))
        if first.behind is None:
            raise AssertionError("the batch is full and has no place to go on from")
        (late,) = _failed(q, queue="late")
        q.execute("update faultline.open_jobs set finished_at = faultline.now() + interval '1 second' where id = %s", late)
        second = q.run(failures.retry(FailedFilter(before=first.behind), max_jobs=3))
        expect("the second batch", (second, q.state(late)), (failures.Retried(2, 0, None), "failed"))


@probe("retry_failed")
def one_batch_has_a_limit_and_so_has_what_it_looks_at(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.execute("set local session_replication_role = replica")
        q.execute(
            "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args,"
            " queue, task, args, state, finished_at, last_error) select gen_random_uuid(), now(), now(), 30, 0, 5, true,"
            " 'q', case when n > 10000 then 'old' else 'new' end, '{}', 'failed', now() - make_interval(secs => n), 'e'"
            " from generate_series(1, 10005) n"
        )
        q.execute("set local session_replication_role = origin")
        old = q.run(failures.retry(FailedFilter(task="old")))
        expect("within the window", (old.jobs, old.behind is not None), (0, True))
        preview = q.run(failures.count(FailedFilter()))
        expect("preview", (preview.jobs, preview.at_least), (10_000, True))
        expect(
            "behind the window",
            q.run(failures.retry(FailedFilter(task="old", before=old.behind))),
            failures.Retried(5, 0, None),
        )
        expect("one batch", q.run(failures.retry(FailedFilter(), max_jobs=1500)).jobs, 1000)


@probe("retry_failed")
def a_locked_job_is_passed_over_and_one_that_was_retried_meanwhile_stays_so(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    held, free = _failed(q, 2)
    other.begin()
    other.execute("select from faultline.open_jobs where id = %s for update", held)
    expect("beside a lock", q.run(failures.retry(FailedFilter())).jobs, 1)
    other.rollback()
    expect("states", (q.state(held), q.state(free)), ("failed", "queued"))


@probe("retry_failed", "lock")
def who_retries_together_with_somebody_else_retries_each_job_once(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    (job_id,) = _failed(q)
    other.begin()
    other.run(failures.retry(FailedFilter()))
    expect("while the other has not committed", q.run(failures.retry(FailedFilter())).jobs, 0)
    other.commit()
    expect("journal", q.events(job_id), ["attempt_failed", "retried"])


def _key(q: Session, number: int, **fields: Any) -> bytes:
    digest = bytes([number]) * 32
    q.run(access.add(UUID(int=number), digest, name=f"key {number}", scopes=["read"], **fields))
    return digest


@probe("api_key", "add_api_key", "revoke_api_key")
def a_key_lets_in_until_it_is_revoked_or_its_time_is_over(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    with q.unsaved():
        digest, other = _key(q, 1, queues=["a"], valid_seconds=60), _key(q, 2)
        q.execute("set local role faultline_viewer")
        found = q.run(access.find(digest))
        expect("the key", found and (found.id, found.scopes, found.queues), (UUID(int=1), {"read"}, {"a"}))
        expect("an unknown key", q.run(access.find(bytes(32))), None)
        lines = {line.id.int: line for line in q.run(access.lines())}
        expect("used", (lines[1].last_used_at is not None, lines[2].last_used_at), (True, None))
        q.execute("reset role")
        sessions.clock.advance(60)
        expect("past its time", q.run(access.find(digest)), None)
        expect("revoked", (q.run(access.revoke(UUID(int=1))), q.run(access.revoke(UUID(int=9)))), (True, False))
        expect("the other", q.run(access.find(other)) is not None, True)
        q.run(access.revoke(UUID(int=2)))
        used = q.value("select last_used_at from faultline.api_keys where name = 'key 2'")
        since = q.value("select revoked_at from faultline.api_keys where name = 'key 2'")
        sessions.clock.advance(120)
        q.run(access.revoke(UUID(int=2)))
        expect("a revoked key", q.run(access.find(other)), None)
        row = q.execute("select last_used_at, revoked_at from faultline.api_keys where name = 'key 2'")
        expect("its last use, and since when", row, [(used, since)])


@probe("api_key")
def the_use_of_a_key_is_noted_once_a_minute_and_waits_for_nobody(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    sessions.clock.take()
    digest = _key(q, 1)
    q.run(access.find(digest))
    version = q.value("select xmin::text from faultline.api_keys")
    q.run(access.find(digest))
    expect("versions of the row", q.value("select xmin::text from faultline.api_keys"), version)
    sessions.clock.advance(60)
    other.begin()
    other.execute("select from faultline.api_keys for update")
    expect("beside a lock", q.run(access.find(digest)) is not None, True)
    other.rollback()


@probe("api_key")
def a_key_lets_in_where_nothing_can_be_written(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        digest = _key(q, 1)
        q.execute("set local transaction_read_only = on")
        expect("the key", q.run(access.find(digest)) is not None, True)

"""What broke an earlier design of unique jobs: attempts that fail, times that are moved, changes that no run has seen."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from faultline.core.model import Submission
from faultline.store import verbs

if TYPE_CHECKING:
    from uuid import UUID

    from tests.driver import Clock, Driver, Session, Sessions

UNIQUE = {"key": "doc:1"}


def submit(session: Driver, **options: Any) -> tuple[UUID, bool]:
    return session.run(verbs.enqueue_many([Submission("t", unique=UNIQUE, **options)]))[0]


def states(queue: Driver) -> dict[str, int]:
    return dict(queue.execute("select state, count(*) from faultline.jobs group by 1"))


@pytest.mark.parametrize("ending", ["fail", "release", "reap", "recover"])
def test_22_a_key_bounds_what_waits_though_attempts_fail(queue: Driver, clock: Clock, ending: str) -> None:
    """One runs and one waits, however often the running one goes back to the queue."""
    for _ in range(10):
        submit(queue)
        lease = queue.claim_one()
        submit(queue)
        if ending == "fail":
            queue.fail(lease)
        elif ending == "release":
            queue.release(lease)
        elif ending == "reap":
            clock.advance(60)
            queue.reap()
        else:
            queue.value("select requeued from faultline.recover()")
        assert states(queue)["queued"] == 1

    (superseded,) = queue.execute("select count(*), min(last_error) from faultline.jobs where state = 'cancelled'")
    assert superseded[0] >= 9
    assert superseded[1].startswith("superseded by job ")
    assert queue.value("select count(*) from faultline.journal where event = 'superseded'") == superseded[0]


def test_22_a_job_that_has_no_other_goes_back_to_the_queue(queue: Driver) -> None:
    job, _ = submit(queue)
    queue.fail(queue.claim_one())

    assert queue.state(job) == "queued"
    # The other runs already: nobody else will do what this one has not.
    lease = queue.claim_one()
    submit(queue)
    other = queue.claim_one()
    queue.fail(lease)
    assert queue.state(job) == "queued"
    assert other.job_id != job


def test_22_a_job_that_others_wait_for_is_not_superseded(queue: Driver) -> None:
    job, _ = submit(queue)
    lease = queue.claim_one()
    submit(queue)
    queue.execute("update faultline.open_jobs set watched = true where id = %s", job)
    queue.fail(lease)

    assert queue.state(job) == "queued"


def test_22_keys_are_pruned_and_a_pruned_key_is_written_again(queue: Driver, clock: Clock) -> None:
    submit(queue)
    queue.complete(queue.claim_one())
    clock.advance(4000)
    assert queue.run(verbs.prune("unique_keys")) == 1

    first = submit(queue)
    assert first[1]
    assert submit(queue) == (first[0], False)


def test_23_a_moved_time_is_waited_for(queue: Driver, clock: Clock) -> None:
    def debounced() -> UUID:
        job = Submission("t", unique={"key": "k", "debounce": 3600, "at_most": 7200}, group=None)
        return queue.run(verbs.enqueue_many([job]))[0].job_id

    job = debounced()
    clock.advance(3599)
    assert debounced() == job
    clock.advance(3599)
    assert queue.claim() == []
    clock.advance(1)
    assert [lease.job_id for lease in queue.claim()] == [job]


def test_a_claim_passes_over_the_job_that_a_submission_was_answered_with_until_it_commits(
    sessions: Sessions, queue: Driver
) -> None:
    submitter = sessions.open()
    job, _ = submit(queue)
    submitter.begin()
    assert submit(submitter) == (job, False)

    assert queue.claim() == []
    submitter.commit()
    assert [lease.job_id for lease in queue.claim()] == [job]


def test_a_job_that_is_being_claimed_counts_as_running(sessions: Sessions, queue: Driver) -> None:
    claimer = sessions.open()
    job, _ = submit(queue)
    claimer.begin()
    claimer.claim_one()

    other, created = submit(queue)

    assert created
    assert other != job
    claimer.commit()


def test_a_submission_of_a_running_job_waits_for_nobody_and_holds_nobody_up(sessions: Sessions, queue: Driver) -> None:
    submitter = sessions.open()
    submit(queue)
    lease = queue.claim_one()
    submitter.begin()
    assert submit(submitter)[1]

    unwritten = queue.complete(lease)

    assert not unwritten.busy
    submitter.commit()


def test_two_submissions_with_the_same_keys_in_opposite_order_do_not_deadlock(sessions: Sessions, queue: Driver) -> None:
    first, second = sessions.open(), sessions.open()

    def bulk(session: Session, keys: str) -> list[Any]:
        return session.run(verbs.enqueue_many([Submission("t", unique={"key": key}) for key in keys]))

    first.begin()
    one = bulk(first, "ab")
    answer = second.start(lambda session: bulk(session, "cba"))
    sessions.wait_until_blocked(second, answer)
    first.commit()

    two = answer.result()
    assert [made.created for made in two] == [True, False, False]
    assert {made.job_id for made in two[1:]} == {made.job_id for made in one}


def test_a_worker_that_passed_over_the_job_is_woken(queue: Driver, sessions: Sessions) -> None:
    listener = sessions.open()
    job, _ = submit(queue)
    listener.execute("listen faultline")
    submit(queue)

    assert any(json.loads(notice).get("queue") == "default" for notice in listener.notices())
    assert queue.state(job) == "queued"


class Indexer(threading.Thread):
    """A worker that notes which version of the document it has seen."""

    def __init__(self, session: Driver) -> None:
        super().__init__()
        self.session = session
        self.over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                for lease in self.session.claim(1):
                    version = self.session.value("select version from public.doc")
                    self.session.execute("insert into public.indexed values (%s)", version)
                    while self.session.complete(lease).busy:
                        time.sleep(0.0005)
                time.sleep(0.003)
        except BaseException as error:  # noqa: BLE001 - told below
            self.error = error


def test_what_is_answered_as_queued_already_is_followed_by_a_run_that_sees_it(sessions: Sessions, queue: Driver) -> None:
    """Writers change a document and ask for its index in one transaction, while workers index it. Whenever all is quiet, the
    last run has seen the last change: without the lock on the queued job's row, it often has not.
    """
    queue.execute("create table public.doc (version int); insert into public.doc values (0)")
    queue.execute("create table public.indexed (version int)")
    indexer = Indexer(sessions.open())
    indexer.start()
    chance, known, missed = random.Random(1), 0, 0
    try:
        for moment in range(2000):
            if moment >= 100 and known >= 20:
                break
            queue.begin()
            known += not submit(queue)[1]
            queue.execute("update public.doc set version = version + 1")
            if chance.random() < 0.5:
                time.sleep(chance.random() * 0.004)
            queue.commit()
            if moment % 4 == 3:
                give_up = time.monotonic() + 5
                while queue.value("select count(*) from faultline.open_jobs") and time.monotonic() < give_up:
                    time.sleep(0.001)
                missed += queue.value("select version > (select max(version) from public.indexed) from public.doc")
    finally:
        indexer.over.set()
        indexer.join()
    assert indexer.error is None
    assert known >= 20, "the test is to meet queued jobs"
    assert missed == 0

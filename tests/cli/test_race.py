"""The lease race that `faultline up` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.cli import demo_race
from faultline.core.journal import EpochEnd
from faultline.explain.epochs import epochs
from faultline.store.database import Database

if TYPE_CHECKING:
    from tests.driver import Clock, Driver


def test_a_stalled_worker_is_refused_and_the_second_one_succeeds(dsn: str, queue: Driver, clock: Clock) -> None:
    def wait(seconds: float) -> None:
        clock.advance(seconds)
        queue.reap()

    database = Database(dsn)
    demo_race.race(database, 1, wait)
    database.close()

    job_id = queue.value("select id from faultline.jobs")
    one, two = epochs(queue.job(job_id), queue.journal(job_id))
    assert (one.end, [(write.verb, write.reason) for write in one.refusals]) == (
        EpochEnd.REAPED, [("complete", "token_mismatch")]
    )  # fmt: skip
    assert (two.end, queue.job(job_id).result) == (EpochEnd.SUCCEEDED, "settled")

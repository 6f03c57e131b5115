"""What a worker counts is what happened, told once, and nothing is told where nothing happened."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from faultline.attempt.outcomes import Cancel, Snooze
from faultline.core import histogram
from faultline.core.host import Host
from faultline.store.reads import overview
from faultline.worker.base.counters import Tally, summed
from faultline.worker.lease.heartbeat import Heartbeat
from tests.waiting import auntil
from tests.worker.working import results

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.app.application import Faultline
    from tests.driver import Driver

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tally_at_noon() -> tuple[Tally, Time]:
    time = Time()
    tally = Tally(time, ["mail"])
    tally.set_clock(NOON, 0.0)
    return tally, time


def test_a_row_holds_what_was_counted_since_its_minute_began() -> None:
    tally, time = tally_at_noon()
    mail = tally.of("mail")

    mail.started += 3
    (first,) = tally.changed()
    tally.stored()
    time.now = 30
    mail.started += 1
    (second,) = tally.changed()
    tally.stored()
    time.now = 61
    mail.started += 1
    (third,) = tally.changed()

    assert [(row["minute"], row["started"]) for row in (first, second, third)] == [
        ("2030-01-01T12:00:00+00:00", 3), ("2030-01-01T12:00:00+00:00", 4), ("2030-01-01T12:01:00+00:00", 1),
    ]  # fmt: skip


def test_a_row_whose_answer_was_lost_is_sent_again_before_the_next_minute_begins() -> None:
    tally, time = tally_at_noon()
    mail = tally.of("mail")
    mail.started += 3
    tally.changed()  # and no answer

    time.now = 61
    mail.started += 1
    (again,) = tally.changed()
    tally.stored()
    mail.started += 1
    (after,) = tally.changed()

    assert (again["minute"], again["started"]) == ("2030-01-01T12:00:00+00:00", 4)
    assert (after["minute"], after["started"]) == ("2030-01-01T12:01:00+00:00", 1)


def test_nothing_is_told_where_nothing_happened() -> None:
    tally, _ = tally_at_noon()
    assert tally.changed() == []

    tally.of("mail").lost += 1
    assert len(tally.changed()) == 1
    tally.stored()

    assert tally.changed() == []


def test_times_are_counted_in_their_buckets_and_never_below_zero(queue: Driver) -> None:
    tally, _ = tally_at_noon()
    mail = tally.of("mail")
    queue.enqueue(queue="mail")
    lease = queue.claim_one(queue="mail")
    for waited in (-0.5, 0.002, 0.0025, 7.0, 1e6):
        lease.next_run_at = NOON - timedelta(seconds=waited)
        mail.claimed([lease])
    mail.ran += [0.0005, 20_000.0]

    counted = mail.copy()

    last, up_to_ten = len(histogram.BOUNDS), histogram.BOUNDS.index(10.0)
    waits = dict.fromkeys(range(last + 1), 0) | {0: 1, 1: 2, up_to_ten: 1, last: 1}
    assert counted["waits"] == list(waits.values())
    assert counted["wait_seconds_sum"] == 0.002 + 0.0025 + 7.0 + 1e6
    assert (counted["runs"][0], counted["runs"][-1]) == (1, 1)


def test_a_worker_tells_what_the_ledger_says(app: Faultline, queue: Driver) -> None:
    tries: list[int] = []

    @app.task(queue="mail", max_attempts=2)
    async def fine() -> None: ...

    @app.task(queue="mail", max_attempts=2, backoff=lambda _: 0.0)
    async def doomed() -> None:
        raise ValueError

    @app.task
    async def odd(how: str) -> Any:
        tries.append(1)
        return Cancel("no") if how == "cancel" else Snooze(0) if len(tries) == 1 else None

    handles: list[Any] = [fine.enqueue() for _ in range(7)]
    handles += [odd.enqueue("snooze"), doomed.enqueue(), odd.enqueue("cancel")]
    results(app, handles, queues={"mail": 5, "default": 1})

    totals = {total.queue: total for total in queue.run(overview.totals())}
    mail, rest = totals["mail"], totals["default"]
    assert (mail.started, mail.succeeded, mail.failed, mail.rescheduled) == (9, 7, 1, 1)
    assert (rest.started, rest.succeeded, rest.released, rest.failed) == (3, 1, 1, 0)
    ledger = queue.value("select count(*) from faultline.ledger where queue = 'mail'")
    assert (mail.succeeded, mail.refused, mail.lost) == (ledger, 0, 0)
    runs = queue.connection.execute(
        "select sum(n), sum(run_seconds_sum) > 0 from faultline.tallies cross join unnest(runs) as n where queue = 'mail'"
    ).fetchone()
    assert runs == (9, True)


def test_a_worker_counts_what_waits(app: Faultline, queue: Driver) -> None:
    @app.task
    async def send() -> None: ...

    queue.enqueue(queue="nobody serves it")
    results(app, [send.enqueue()])

    (waiting,) = [line for line in queue.run(overview.queues()) if line.name == "nobody serves it"]
    assert waiting.due == 1


def test_a_refused_write_is_counted_by_verb_and_reason(app: Faultline, queue: Driver) -> None:
    @app.task
    async def taken_away() -> None:
        queue.connection.execute(
            "update faultline.open_jobs set lease_expires_at = faultline.now() - interval '1 minute' where state = 'running'"
        )
        queue.reap()
        (lease,) = queue.claim(worker="thief")
        queue.complete(lease)

    async def story() -> Any:
        async with app.worker() as worker:
            handle = await taken_away.aenqueue()
            await handle.aresult(timeout=20)
            await auntil(lambda: worker.report()["refusals"])
        report = worker.report()
        await app.async_database.close()
        return report

    report = asyncio.run(story())

    assert report["refusals"] == [["complete", "token_mismatch", 1]]
    assert report["enqueued"] == {"default": 1}
    assert queue.run(overview.counted()).refused == 1


def test_a_worker_counts_whom_it_took_jobs_back_from(app: Faultline, queue: Driver) -> None:
    @app.task
    async def late() -> None: ...

    handle = late.enqueue()
    queue.claim_one(worker="dead")
    queue.connection.execute("update faultline.open_jobs set lease_expires_at = faultline.now() - interval '1 minute'")

    async def story() -> Any:
        async with app.worker() as worker:
            await handle.aresult(timeout=20)
        report = worker.report()
        await app.async_database.close()
        return report

    report = asyncio.run(story())

    assert report["reaped"] == {"lease_expired": 1}
    assert report["queues"]["default"]["requeued"] == 1
    assert queue.run(overview.counted()).requeued == 1
    assert report["leases"] == 0


class ByHand:
    def __init__(self, tick: Callable[[], float], watch: Callable[[], None]) -> None: ...

    def start(self) -> None: ...

    def wake(self) -> None: ...

    async def stop(self, last: Callable[[], None]) -> None:
        last()


def test_the_heartbeat_learns_the_databases_time_and_tells_how_far_its_own_is_ahead(dsn: str, queue: Driver) -> None:
    time = Time()
    tally = Tally(time)
    database = queue.value("select extract(epoch from clock_timestamp())::float8")
    beating = Heartbeat(dsn, "w", ["q"], Host(monotonic=time, seconds=lambda: database + 3600, pulse=ByHand), tally)

    beating.tick()
    time.now += 1.5
    beating.tick()
    (worker,) = queue.run(overview.workers())
    asyncio.run(beating.stop())

    assert worker.clock_ahead_seconds is not None
    assert 3590 < worker.clock_ahead_seconds <= 3600
    assert abs(tally.database_seconds() - database) < 10


def test_reports_of_several_processes_sum_up() -> None:
    tally, _ = tally_at_noon()
    mail = tally.of("mail")
    mail.started, mail.waits[2] = 2, 5
    mail.refuse("renew", "lease_lost")
    one = tally.report(enqueued={"a": 1}, reconnects=1, leases=3)
    tally.of("other")
    two = tally.report(enqueued={"b": 1}, reconnects=0, leases=4)

    both = summed([one, two])

    assert both["queues"]["mail"]["started"] == 4
    assert both["queues"]["mail"]["waits"][2] == 10
    assert both["queues"].keys() == {"mail", "other"}
    assert (both["enqueued"], both["refusals"]) == ({"a": 1, "b": 1}, [["renew", "lease_lost", 2]])
    assert (both["reconnects"], both["leases"]) == (1, 7)

"""Checks: declaring tasks, sending jobs, attempts."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import JobFailed, JobHandle, JobRejected
from faultline.testing import crash_everywhere, drain, frozen_time
from tests.moving.page import Scene, asynchronously, checks
from tests.worker.working import results

if TYPE_CHECKING:
    from faultline import Faultline


class Bank:
    """Refuses to charge with one error."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def charge(self, order_id: int) -> None:
        raise self._error(f"no money for {order_id}")


def ran(app: Faultline, *handles: JobHandle[Any]) -> list[Any]:
    """The results, after everything that is due has run."""
    drain(app)
    return [handle.result(0.1) for handle in handles]


@checks("Declare a task")
def _(scene: Scene) -> None:
    charge = scene.run()["charge"]

    handle = charge.enqueue(42)
    assert (charge.name, handle.job().task) == ("shop.charge", "shop.charge")
    assert ran(scene.app, handle) == [{"order": 42}]

    def ship(order_id: int) -> int:
        return order_id

    shared = scene.app.task(name="shop.ship")(ship)
    assert ran(scene.app, shared.enqueue(7)) == [7]


@checks("Send a job", "celery", "rq", "dramatiq", "procrastinate")
def _(scene: Scene) -> None:
    page = scene.run()

    with pytest.raises(JobRejected, match="order_id"):
        page["charge"].enqueue()
    assert ran(scene.app, page["handle"]) == ["charged 42"]
    assert len(scene.app.jobs()) == 1


@checks("Delay and expiry", "celery", "arq", "rq", "dramatiq", "procrastinate")
def _(scene: Scene) -> None:
    with frozen_time(scene.app) as time:
        page = scene.run()

        soon, later = page["soon"].job(), page["later"].job()
        assert soon.next_run_at - time.now == timedelta(seconds=60)
        assert soon.expires_at - time.now == timedelta(hours=1)
        assert later.next_run_at == datetime(2030, 1, 1, 9, tzinfo=UTC)
        assert drain(scene.app).succeeded == 0
        late = page["remind"].options(expires=3600).enqueue(44)
        time.advance(3601)
        assert drain(scene.app).succeeded == 0
        assert [page["soon"].job().state, late.job().state] == ["cancelled", "cancelled"]
        time.advance_to(datetime(2030, 1, 1, 9, tzinfo=UTC))
        assert drain(scene.app).succeeded == 1


@checks("Signatures")
@checks("Many jobs", "procrastinate")
def _(scene: Scene) -> None:
    page = scene.run()

    assert [handle.job().queue for handle in page["handles"]] == ["default", "slow"]
    with pytest.raises(JobRejected, match="order_id"):
        page["charge"].bind()
    assert drain(scene.app).succeeded == 2


@checks("After the commit")
@checks("In your own transaction", "procrastinate")
def _(scene: Scene) -> None:
    scene.queue.connection.execute("create table orders (id int primary key)")
    page = scene.run()

    assert scene.queue.value("select array_agg(id) from orders") == [42]
    assert page["handle"].job().state == "queued"

    with psycopg.connect(scene.app.dsn) as connection:
        page["charge"].using(connection).enqueue(43)
        connection.rollback()
    assert len(scene.app.jobs()) == 1


@checks("Serializers")
def _(scene: Scene) -> None:
    page = scene.run()
    money = page["Money"]

    assert ran(scene.app, page["refund"].enqueue(money(100), date(2026, 11, 18))) == [money(118)]


@checks("The job inside its task")
@checks("The current job", "rq")
@checks("The current message", "dramatiq")
@checks("The job context", "procrastinate")
def _(scene: Scene) -> None:
    handle = scene.run()["export"].enqueue("May")

    assert ran(scene.app, handle) == [f"May: attempt 1 of {handle.id}"]
    assert handle.job().progress == {"page": 1}


@checks("Declare a task", "procrastinate")
@checks("Declare an actor", "dramatiq")
def _(scene: Scene) -> None:
    charge = scene.run()["charge"]

    handle = charge.enqueue(42)
    assert ran(scene.app, handle) == [{"order": 42}]
    assert handle.job().task == "charge"


@checks("Declare a task", "arq")
def _(scene: Scene) -> None:
    assert ran(scene.app, scene.run()["charge"].enqueue(42)) == [{"order": 42, "attempt": 1}]


@checks("Send a job", "arq")
def _(scene: Scene) -> None:
    page = scene.run()

    handle = asynchronously(scene.app, page["order"])
    with pytest.raises(JobRejected, match="order_id"):
        page["charge"].enqueue()
    assert ran(scene.app, handle) == ["charged 42"]


@checks("Retries", "arq", "rq")
def _(scene: Scene) -> None:
    class AsyncBank(Bank):
        async def charge(self, order_id: int) -> None:  # type: ignore[override]
            super().charge(order_id)

    page = scene.run()
    kind, waits = (AsyncBank, [5, 10]) if scene.page.name == "arq" else (Bank, [10, 30, 60])
    with frozen_time(scene.app) as time:
        page["bank"] = kind(ValueError)
        other = page["charge"].enqueue(13)
        drain(scene.app)
        assert (other.job().state, other.job().attempt) == ("failed", 1)

        page["bank"] = kind(page["BankError"])
        handle = page["charge"].enqueue(42)
        for wait in waits:
            drain(scene.app)
            assert handle.job().next_run_at - time.now == timedelta(seconds=wait)
            time.advance(wait)
        drain(scene.app)
        assert (handle.job().state, handle.job().attempt) == ("failed", len(waits) + 1)


@checks("Retries", "dramatiq")
def _(scene: Scene) -> None:
    page = scene.run()

    with frozen_time(scene.app) as time:
        for error, attempts in ((page["InvalidCard"], 1), (ValueError, 5)):
            page["bank"] = Bank(error)
            handle = page["charge"].enqueue(42)
            drain(scene.app, advancing=time)
            assert (handle.job().state, handle.job().attempt) == ("failed", attempts)


@checks("Automatic retries")
@checks("Retries", "procrastinate")
def _(scene: Scene) -> None:
    page = scene.run()

    with frozen_time(scene.app) as time:
        for error, attempts in ((page["BankError"], 5), (ValueError, 1)):
            page["bank"] = Bank(error)
            handle = page["charge"].enqueue(42)
            drain(scene.app, advancing=time)
            assert (handle.job().state, handle.job().attempt) == ("failed", attempts)

    waits = [page["charge"].backoff(n) for n in range(1, 12)]
    assert 5 * 0.75 <= waits[0] <= 5 * 1.25
    assert 10 * 0.75 <= waits[1] <= 10 * 1.25
    assert 600 * 0.75 <= waits[-1] <= 600 * 1.25


@checks("Retries by hand")
def _(scene: Scene) -> None:
    class Provider:
        asked = 0

        def report(self, report_id: int) -> str:
            self.asked += 1
            if self.asked == 1:
                raise page["NotReady"]("not yet")
            return f"report {report_id}"

    page = scene.run(provider=Provider())
    with frozen_time(scene.app) as time:
        handle = page["poll"].enqueue(7)
        assert drain(scene.app).rescheduled == 1
        assert handle.job().next_run_at - time.now == timedelta(seconds=30)
        assert "not yet" in str(handle.job().last_error)
        time.advance(30)

        assert ran(scene.app, handle) == ["report 7"]
        assert handle.job().attempt == 2


@checks("Late acknowledgement")
@checks("Stalled jobs", "procrastinate")
def _(scene: Scene) -> None:
    scene.queue.connection.execute("create table payments (order_id int)")
    charge = scene.run()["charge"]

    def payments() -> int:
        return int(scene.queue.value("select count(*) from payments"))

    report = crash_everywhere(scene.app, charge.bind(42), effects=payments)
    report.raise_if_broken()
    assert report.expected == 1
    assert len(report.crashes) > 5


@checks("Time limits")
def _(scene: Scene) -> None:
    async def draw(page: int) -> str:
        """Page 1 is drawn; 2 takes too long; 3 does not heed the soft limit either."""
        if page == 1:
            return "drawn"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if page == 3:
                await asyncio.sleep(60)
            raise
        return "never"

    render = scene.run(draw=draw)["render"]
    drawn, sketch, late = results(scene.app, [render.enqueue(page) for page in (1, 2, 3)])

    assert (drawn, sketch) == ("drawn", "sketch")
    assert isinstance(late, JobFailed)
    assert "2 s" in str(late), late


@checks("Timeouts", "arq", "dramatiq")
def _(scene: Scene) -> None:
    async def draw(page: int) -> str:
        """Page 1 is drawn; 2 takes too long."""
        if page == 2:
            await asyncio.sleep(60)
        return "drawn"

    render = scene.run(draw=draw)["render"]
    drawn, late = results(scene.app, [render.enqueue(page) for page in (1, 2)])

    assert drawn == "drawn"
    assert isinstance(late, JobFailed)
    assert "2 s" in str(late), late


@checks("Async tasks")
def _(scene: Scene) -> None:
    together = asyncio.Barrier(20)

    async def load(url: str) -> int:
        await together.wait()
        return len(url)

    fetch = scene.run(load=load)["fetch"]

    assert results(scene.app, [fetch.enqueue("x" * n) for n in range(20)]) == list(range(20))

"""Graphs: jobs that come after others, enqueued together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import BlockingJob, ContinueAsNew, Faultline, Job, JobCancelled, JobFailed, JobRejected, JobState, KeyConflict
from tests.waiting import auntil
from tests.worker.working import PATIENCE, results, work

if TYPE_CHECKING:
    from faultline import Flow, FlowHandle


def tasks(app: Faultline) -> dict[str, Any]:
    @app.task
    async def extract(source: str) -> str:
        if source == "broken":
            raise ValueError("no such source")
        return source.upper()

    @app.task
    async def load(job: Job) -> list[str]:
        return [one.result for one in (await job.upstream()).values()]

    @app.task
    def report(job: BlockingJob) -> dict[str, str]:
        return {name: one.state.value for name, one in job.upstream().items()}

    return {"extract": extract.options(max_attempts=1), "load": load, "report": report}


def nightly(app: Faultline, known: dict[str, Any], *sources: str) -> Flow:
    with app.flow("nightly") as flow:
        extracted = [flow.add(known["extract"], source, name=source) for source in sources]
        loaded = flow.add(known["load"], after=extracted)
        flow.add(known["report"], after=[loaded], if_failed="run")
    return flow


def test_each_job_runs_after_those_that_it_comes_after_and_the_flow_has_their_results(app: Faultline) -> None:
    handle = nightly(app, tasks(app), "crm", "shop", "web").enqueue()

    [result] = results(app, [handle])

    assert result == {"report": {"load": "succeeded"}}
    assert handle.jobs["load"].result(PATIENCE) == ["CRM", "SHOP", "WEB"]
    assert handle.created


def test_a_job_that_comes_after_a_failed_one_is_cancelled_or_runs_as_it_was_told(app: Faultline) -> None:
    handle = nightly(app, tasks(app), "crm", "broken").enqueue()

    [error] = results(app, [handle])

    assert isinstance(error, JobFailed)
    assert "2 of 4 jobs did not succeed: broken failed: ValueError: no such source" in str(error)
    with pytest.raises(JobCancelled, match="comes after"):
        handle.jobs["load"].result(PATIENCE)
    assert handle.jobs["report"].result(PATIENCE) == {"load": "cancelled"}


def test_cancelling_the_flow_cancels_all_that_has_not_ended(app: Faultline) -> None:
    handle = nightly(app, tasks(app), "crm").enqueue()

    app.cancel(handle.id, "enough")

    async def all_ended() -> None:
        await auntil(lambda: all(one.job().state is JobState.CANCELLED for one in handle.jobs.values()))

    work(app, all_ended, {"other": 1})


def test_a_flow_joins_the_transaction_of_its_caller(app: Faultline, dsn: str) -> None:
    flow = nightly(app, tasks(app), "crm")

    with psycopg.connect(dsn) as conn:
        flow.using(conn).enqueue()
        conn.rollback()
        kept = flow.using(conn).enqueue()

    with psycopg.connect(dsn) as conn:
        found = {row[0] for row in conn.execute("select id from faultline.jobs")}
    assert found == {kept.id, *(one.id for one in kept.jobs.values())}


def test_async_programs_enqueue_flows_too(app: Faultline, dsn: str) -> None:
    flow = nightly(app, tasks(app), "crm")

    async def enqueue() -> FlowHandle:
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            await flow.using(conn).aenqueue()
        handle = await flow.aenqueue()
        await app.async_database.close()
        return handle

    assert asyncio.run(enqueue()).created


def test_the_key_of_a_flow_gives_the_jobs_of_the_first_enqueue(app: Faultline) -> None:
    known = tasks(app)

    first = nightly(app, known, "crm").enqueue(idempotency_key="nightly:1")
    again = nightly(app, known, "crm").enqueue(idempotency_key="nightly:1")

    assert (again.id, again.created) == (first.id, False)
    assert {name: one.id for name, one in again.jobs.items()} == {name: one.id for name, one in first.jobs.items()}
    with pytest.raises(KeyConflict):
        nightly(app, known, "shop").enqueue(idempotency_key="nightly:1")


def test_chains_groups_and_chords_are_a_line_each(app: Faultline) -> None:
    @app.task
    async def add(job: Job, number: int) -> int:
        return number + sum(int(one.result) for one in (await job.upstream()).values())

    with app.flow("chord") as flow:
        group = [flow.add(add, number) for number in (1, 2, 3)]
        total = flow.add(add, 10, after=group)
        flow.add(add, 100, after=[total], name="chain")

    assert results(app, [flow.enqueue()]) == [{"chain": 116}]
    assert group[2].name == "add 3"


def test_a_failed_flow_is_retried_with_what_failed_in_it(app: Faultline) -> None:
    broken = [True]

    @app.task(max_attempts=1)
    async def first() -> str:
        if broken[0]:
            raise ValueError("not today")
        return "first"

    @app.task
    async def second() -> str:
        return "second"

    with app.flow() as flow:
        flow.add(second, after=[flow.add(first)])
    handle = flow.enqueue()
    [error] = results(app, [handle])
    assert isinstance(error, JobFailed)
    broken[0] = False

    app.retry(handle.id)

    assert results(app, [handle]) == [{"second": "second"}]


def test_a_graph_that_makes_no_sense_is_refused(app: Faultline) -> None:
    known = tasks(app)
    flow = app.flow("odd")
    with pytest.raises(JobRejected, match="has no jobs"):
        flow.enqueue()
    crm = flow.add(known["extract"], "crm", name="crm")
    with pytest.raises(JobRejected, match="named crm already"):
        flow.add(known["extract"], "crm", name="crm")
    with pytest.raises(JobRejected, match="was not added to flow odd before"):
        flow.add(known["load"], after=[app.flow().add(known["load"], name="other")])
    with pytest.raises(JobRejected, match="the same job twice"):
        flow.add(known["load"], after=[crm, crm])
    with pytest.raises(JobRejected, match="if_failed must be"):
        flow.add(known["load"], after=[crm], if_failed="maybe")  # type: ignore[arg-type]
    with pytest.raises(JobRejected, match="source"):
        flow.add(known["extract"], colour="red")


def test_a_job_of_a_graph_that_starts_over_still_has_what_it_came_after(app: Faultline) -> None:
    @app.task
    def source() -> str:
        return "data"

    @app.task
    async def load(job: Job, n: int = 0) -> Any:
        found = [one.result for one in (await job.upstream()).values()]
        return ContinueAsNew(n + 1) if n < 2 else found

    with app.flow("nightly") as flow:
        flow.add(load, after=[flow.add(source)])

    assert results(app, [flow.enqueue()]) == [{"load": ["data"]}]

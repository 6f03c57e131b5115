"""Run programs on a real worker, and look at what they have recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from faultline.store import verbs
from tests.waiting import auntil
from tests.worker.working import PATIENCE, work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faultline import Faultline, JobHandle


def ended(app: Faultline, handle: JobHandle[Any], *then: Callable[[JobHandle[Any]], Awaitable[Any]]) -> Any:
    """The result of a job, or its error, after each of these has been done."""

    async def story() -> Any:
        for one in then:
            await one(handle)
        try:
            return await handle.aresult(PATIENCE)
        except Exception as error:  # noqa: BLE001 - the test judges it
            return error

    return work(app, story)


def waits(app: Faultline) -> Callable[[JobHandle[Any]], Awaitable[None]]:
    """Wait until the job waits."""

    async def wait(handle: JobHandle[Any]) -> None:
        with psycopg.connect(app.dsn, autocommit=True) as connection:
            query = "select suspended from faultline.open_jobs where id = %s"
            await auntil(lambda: (connection.execute(query, (handle.id,)).fetchone() or (None,))[0], PATIENCE)

    return wait


def signals(app: Faultline, name: str, payload: Any = None, **words: Any) -> Callable[[JobHandle[Any]], Awaitable[None]]:
    """Send a signal."""

    async def send(handle: JobHandle[Any]) -> None:
        await app.async_database.run(verbs.signal(handle.id, name, payload, **words))

    return send


def deploys(app: Faultline, name: str, fn: Callable[..., Any]) -> Callable[[JobHandle[Any]], Awaitable[None]]:
    """Give the worker other code for a task."""

    async def deploy(_: JobHandle[Any]) -> None:
        app.tasks[name].fn = fn

    return deploy


def journals(app: Faultline, event: str) -> Callable[[JobHandle[Any]], Awaitable[None]]:
    """Wait until the journal of the job has such an entry."""

    async def wait(handle: JobHandle[Any]) -> None:
        await auntil(lambda: journal(app, handle, event), PATIENCE)

    return wait


def journal(app: Faultline, handle: JobHandle[Any], event: str) -> list[dict[str, Any]]:
    query = "select detail from faultline.journal where job_id = %s and event = %s order by at"
    return [row["detail"] for row in _rows(app, query, (handle.id, event))]


def calls(app: Faultline, handle: JobHandle[Any]) -> dict[str, dict[str, Any]]:
    """What the program has recorded, by number."""
    query = "select * from faultline.calls where job_id = %s order by string_to_array(number, '.')::bigint[]"
    return {row["number"]: row for row in _rows(app, query, (handle.id,))}


def children_of(app: Faultline, handle: JobHandle[Any]) -> list[Any]:
    """The ids of the jobs that the program has called or waits for."""
    query = (
        "select e.job_id from faultline.edges e join faultline.calls c on c.id = e.call_id where c.job_id = %s"
        " order by c.id, e.index"
    )
    return [row["job_id"] for row in _rows(app, query, (handle.id,))]


def job_of(app: Faultline, handle: JobHandle[Any]) -> dict[str, Any]:
    return _rows(app, "select * from faultline.jobs where id = %s", (handle.id,))[0]


def _rows(app: Faultline, query: str, params: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
    with psycopg.connect(app.dsn, autocommit=True, row_factory=dict_row) as connection:
        return connection.execute(query.encode(), params).fetchall()

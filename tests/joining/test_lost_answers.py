"""The answer to a commit of the task's own session is lost, and the job was completed: the session goes on as after any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.joining.sessions import adisposed, disposed, url
from tests.worker.working import results

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from faultline import BlockingJob, Faultline, Job
    from tests.driver import Driver


@pytest.fixture(autouse=True)
def _paid(queue: Driver) -> None:
    queue.connection.execute("create table paid (n integer primary key)")


def lose_next_answer(engine: Engine, queue: Driver, server_process: Any) -> None:
    """The next commit arrives, and its session ends before the answer."""
    dialect: Any = engine.dialect
    usual = dialect.do_commit

    def do_commit(connection: Any) -> None:
        dialect.do_commit = usual
        usual(connection)
        queue.connection.execute("select pg_terminate_backend(%s, 5000)", (server_process,))
        connection.cursor().execute("select 1")

    dialect.do_commit = do_commit


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_session_goes_on_after_a_lost_answer_to_its_commit(app: Faultline, queue: Driver, driver: str) -> None:
    @app.task(max_attempts=1)
    def pay(job: BlockingJob) -> None:
        with disposed(create_engine(url(app, driver))) as engine, Session(engine) as session:
            with job.transaction(session) as tx:
                session.execute(text("insert into paid values (1)"))
                lose_next_answer(engine, queue, session.scalar(text("select pg_backend_pid()")))
                tx.complete("paid")
            session.execute(text("insert into paid values (2)"))
            session.commit()

    assert results(app, [pay.enqueue()]) == ["paid"]
    assert queue.connection.execute("select n from paid order by n").fetchall() == [(1,), (2,)]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_async_session_goes_on_after_a_lost_answer_to_its_commit(app: Faultline, queue: Driver, driver: str) -> None:
    @app.task(max_attempts=1)
    async def pay(job: Job) -> None:
        async with adisposed(create_async_engine(url(app, driver))) as engine, AsyncSession(engine) as session:
            async with job.transaction(session) as tx:
                await session.execute(text("insert into paid values (1)"))
                lose_next_answer(engine.sync_engine, queue, await session.scalar(text("select pg_backend_pid()")))
                tx.complete("paid")
            await session.execute(text("insert into paid values (2)"))
            await session.commit()

    assert results(app, [pay.enqueue()]) == ["paid"]
    assert queue.connection.execute("select n from paid order by n").fetchall() == [(1,), (2,)]

"""Hooks of a session around the job's transaction: what they raise changes nothing of what has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.joining.sessions import adisposed, disposed, url
from tests.worker.working import results

if TYPE_CHECKING:
    import io

    from faultline import BlockingJob, Faultline, Job
    from tests.driver import Driver


@pytest.mark.parametrize("completes", [True, False])
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_hook_that_raises_after_the_commit_takes_nothing_back_and_is_told(
    app: Faultline, queue: Driver, log: io.StringIO, kind: str, *, completes: bool
) -> None:
    queue.connection.execute("create table paid (n integer primary key)")

    def refuse(_: Session) -> None:
        raise ValueError("no mail today")

    @app.task(name="blocking", max_attempts=1)
    def pay(job: BlockingJob) -> None:
        with disposed(create_engine(url(app, "psycopg"))) as engine, Session(engine) as session:
            event.listen(session, "after_commit", refuse)
            with job.transaction(session) as tx:
                session.execute(text("insert into paid values (1)"))
                if completes:
                    tx.complete("paid")

    @app.task(name="async", max_attempts=1)
    async def apay(job: Job) -> None:
        async with adisposed(create_async_engine(url(app, "asyncpg"))) as engine, AsyncSession(engine) as session:
            event.listen(session.sync_session, "after_commit", refuse)
            async with job.transaction(session) as tx:
                await session.execute(text("insert into paid values (1)"))
                if completes:
                    tx.complete("paid")

    (found,) = results(app, [app.enqueue(kind)])

    assert queue.connection.execute("select n from paid").fetchall() == [(1,)]
    assert "stale_write_blocked" not in log.getvalue()
    if completes:
        assert found == "paid"
        assert "failed_after_completion" in log.getvalue()
    else:
        assert "ValueError: no mail today" in str(found)

"""A real program on real screens: what it waits for is shown, and a signal by any door makes it go on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import Cancel, Faultline, IllegalTransition, Job, JobHandle, JobNotFound, JobRejected
from faultline.store.reads import flows, suspended, views
from tests.cli.commands import faultline
from tests.waiting import auntil
from tests.web.site import browsed
from tests.worker.working import PATIENCE, work

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.driver import Driver


@dataclass(frozen=True)
class Approval:
    ok: bool
    by: str


@pytest.fixture
def article(app: Faultline) -> Any:
    @app.step
    async def draft(topic: str) -> str:
        return f"about {topic}"

    @app.task
    async def part(n: int) -> int | Cancel:
        return Cancel("no three") if n == 3 else n

    @app.task
    async def article(job: Job, topic: str) -> str:
        text = await job.do(draft, topic)
        parts = await job.map(part, range(60), on_failure="keep")
        answer = await job.receive("approval", Approval, timeout=3600)
        return f"{text}, {sum(n is not None for n in parts)} parts, by {answer.by}"

    return article


def waits(app: Faultline) -> Callable[[], bool]:
    return lambda: any(wait.kind == "signal" for wait in app.database.run(suspended.waiting()).waiting)


def test_the_screens_show_a_program_while_it_waits_and_after_a_signal_from_the_page(
    app: Faultline, dsn: str, article: Any
) -> None:
    async def story() -> tuple[JobHandle[str], str, Any, str]:
        handle = await article.aenqueue("tides")
        await auntil(waits(app))
        with browsed(dsn) as site:
            shown = (await asyncio.to_thread(site.page, f"/jobs/{handle.id}")).text
            form = f"/jobs/{handle.id}/signals"
            sent = await asyncio.to_thread(site.send, "/waiting", form, payload='{"ok": true, "by": "ada"}')
        return handle, shown, sent, await handle.aresult(PATIENCE)

    handle, shown, sent, result = work(app, story)

    assert "waiting for the signal approval" in shown
    assert "60 of 60 ended, 59 succeeded, 1 cancelled" in shown
    assert sent.headers["location"] == "/waiting?said=signalled"
    assert result == "about tides, 59 parts, by ada"
    with browsed(dsn) as site:
        after = site.page(f"/jobs/{handle.id}")
    assert "3 signal approval" in after.text
    assert any(mark.get("class") == "mark-signal" for mark in after.of("svg"))
    in_terminal = faultline("flow", str(handle.id), "--dsn", dsn).stdout.splitlines()
    assert in_terminal[0].startswith(f"article  {handle.id}  succeeded")
    assert in_terminal[3].strip(" │") == "■■■▨" + "■" * 56
    assert '{"by": "ada", "ok": true}' in in_terminal[-1]


YES = Approval(ok=True, by="ada")


def by_key(app: Faultline, _: UUID) -> None:
    app.signal(None, "approval", YES, idempotency_key="order:42", by="ada")


def by_command(app: Faultline, job_id: UUID) -> None:
    faultline("signal", str(job_id), "approval", '{"ok": true, "by": "ada"}', "--dsn", app.dsn)


def by_sql(app: Faultline, job_id: UUID) -> None:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute("""select faultline.signal(%s, 'approval', '{"ok": true, "by": "ada"}')""", (job_id,))


def in_a_transaction(app: Faultline, job_id: UUID) -> None:
    with psycopg.connect(app.dsn) as connection:
        app.using(connection).signal(job_id, "approval", YES)
        assert app.database.run(flows.signals([job_id])) == []


def by_handle(app: Faultline, job_id: UUID) -> None:
    app.handle(job_id).signal("approval", YES)


@pytest.mark.parametrize("send", [by_handle, by_key, by_command, by_sql, in_a_transaction])
def test_a_signal_by_any_door_makes_the_program_go_on(app: Faultline, send: Callable[[Faultline, UUID], None]) -> None:
    @app.task
    async def ask(job: Job) -> str:
        return (await job.receive("approval", Approval)).by

    async def story() -> str:
        handle = await ask.options(idempotency_key="order:42").aenqueue()
        await auntil(waits(app))
        await asyncio.to_thread(send, app, handle.id)
        return await handle.aresult(PATIENCE)

    assert work(app, story) == "ada"


def test_async_programs_send_signals_too(app: Faultline, queue: Driver) -> None:
    job_id = queue.enqueue()

    async def story() -> list[bool]:
        handle = app.handle(job_id)
        sent = [await handle.asignal("n", YES, key="k"), await app.asignal(job_id, "n", key="k")]
        await app.async_database.close()
        return sent

    assert asyncio.run(story()) == [True, False]
    assert [signal.payload for signal in queue.run(flows.signals([job_id]))] == [{"ok": True, "by": "ada"}]


def test_a_signal_that_is_refused_says_why_and_is_not_kept(app: Faultline, queue: Driver) -> None:
    ended = queue.new_lease()
    queue.complete(ended)
    job_id = queue.enqueue()

    with pytest.raises(JobNotFound, match="idempotency key"):
        app.signal(None, "n", idempotency_key="none")
    with pytest.raises(IllegalTransition):
        app.signal(ended.job_id, "n")
    with pytest.raises(JobRejected, match="payload of signal n"):
        app.signal(job_id, "n", {"a": object()})
    with pytest.raises(JobRejected):
        app.signal(job_id, "n", by="\x1b[2J")

    assert queue.run(flows.signals([job_id])) == []
    assert queue.run(views.journal(job_id)) == []

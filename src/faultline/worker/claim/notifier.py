"""Listen for wake-ups. A hint saves waiting for the next poll; a lost hint costs at most that wait.

The notifier replaces a dead connection, and then has all queues checked, since hints may have been missed. Behind a
transaction-mode pooler it cannot listen: it logs that once, and the feeds only poll.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from faultline.core import events
from faultline.core.errors import UnreadableJson
from faultline.core.model import Bound
from faultline.core.pause import Pause
from faultline.store import jsontext
from faultline.store.connection.session_settings import is_direct
from faultline.store.translation import translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.store.async_database import AsyncDatabase

_CHECK_SECONDS = 10.0
_ANSWER_SECONDS = 5.0
_PAUSE_MIN, _PAUSE_MAX = 0.1, 5.0
#: More workers are named than there are jobs, in case one of the first is busy: each of these waits so much longer.
_STAND_BY_SECONDS, _STAND_BY_MAX = 0.005, 2


class Hint(NamedTuple):
    """There may be due jobs of this queue (None: of any) from this position on (None: anywhere)."""

    queue: str | None = None
    lowest: Bound | None = None
    #: After how many seconds this worker should look, unless it has claimed meanwhile. None: others were chosen.
    wake_after: float | None = 0.0
    #: The jobs that it is about. Empty: not known.
    job_ids: frozenset[UUID] = frozenset()


class Notifier:
    """Calls `on_work(hint)` for every hint, and `on_cancel(job_ids)` once for all jobs that are called cancelled in one turn
    of the loop: any login can send any number of hints. `on_nudge()`: a job that waits may be able to go on.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        *,
        worker_id: str | None = None,
        on_work: Callable[[Hint], None],
        on_cancel: Callable[[set[UUID]], None],
        on_nudge: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self.listening = False
        self._on_work = on_work
        self._on_cancel = on_cancel
        self._on_nudge = on_nudge
        self._cancelled: set[UUID] = set()

    async def run(self) -> None:
        pause = Pause(_PAUSE_MIN, _PAUSE_MAX)
        while True:
            try:
                with translated(self._database.dsn):
                    if not await self._listen():
                        return
                pause.reset()
            except Exception as error:  # noqa: BLE001 - any error: listen again
                events.emit("listener_lost", error=str(error))
                await asyncio.sleep(pause.next())

    async def _listen(self) -> bool:
        async with await self._database.connect() as connection:
            cursor = await connection.execute("select pg_backend_pid()")
            if not is_direct(connection, await cursor.fetchone()):
                events.emit("polling_only", reason="a pooler is between the worker and the server")
                return False
            await connection.execute("listen faultline")
            self.listening = True
            try:
                self._on_work(Hint())
                while True:
                    async for notice in connection.notifies(timeout=_CHECK_SECONDS):
                        self._heard(notice.payload)
                    # Silence may mean a dead connection: check.
                    async with asyncio.timeout(_ANSWER_SECONDS):
                        await connection.execute("select 1")
            finally:
                self.listening = False

    def _heard(self, payload: str) -> None:
        try:
            hint = jsontext.decode(payload)
            if "cancelled" in hint:
                job_id = UUID(hint["cancelled"])
                if not self._cancelled:
                    asyncio.get_running_loop().call_soon(self._pass_on_cancelled)
                self._cancelled.add(job_id)
            elif "nudge" in hint:
                self._on_nudge()
            else:
                lowest, job_ids = _bound(hint["priority"], hint["run_at"]), frozenset(map(UUID, hint.get("ids", ())))
                self._on_work(Hint(hint["queue"], lowest, self._wake_after(hint.get("workers"), len(job_ids)), job_ids))
        except (UnreadableJson, ValueError, KeyError, TypeError, AttributeError):
            # Anyone can notify on this channel.
            events.emit("hint_not_understood", payload=payload[:200])

    def _wake_after(self, chosen: list[str] | None, jobs: int) -> float | None:
        """The first of the chosen look at once, one for each job. The others stand by."""
        if chosen is None:
            return 0.0
        if self._worker_id not in chosen:
            return None
        position = chosen.index(self._worker_id) - jobs + 1 if jobs else 0
        return max(0, min(position, _STAND_BY_MAX)) * _STAND_BY_SECONDS

    def _pass_on_cancelled(self) -> None:
        job_ids, self._cancelled = self._cancelled, set()
        self._on_cancel(job_ids)


def _bound(priority: object, run_at: str) -> Bound:
    at = datetime.fromisoformat(run_at)
    if not isinstance(priority, int) or at.tzinfo is None:
        raise ValueError("not a position in a queue")
    return Bound(priority, at)

"""What a soak runs: jobs of several kinds, each with a number by which it is found again, and the process that runs them.

Run as `python -m faultline_proof.soak.tasks DSN TAPE`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultline.app.application import Faultline
from faultline.app.blocking_job import BlockingJob  # noqa: TC001 - looked at when the task is registered
from faultline.app.job import Job  # noqa: TC001 - looked at when the task is registered
from faultline.worker.process import run_until_signalled
from faultline_proof.soak import flows, limits, mischief, schedules
from faultline_proof.tape import Recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.app.tasks import Task

#: Short, so that freezing a worker for a few seconds is enough to lose it.
LEASE_SECONDS = 2.0
#: Some are longer: a killed worker's jobs then come back because it is known to be dead.
LONG_LEASE_SECONDS = 8.0
#: No job of a soak deserves to fail, however often its worker dies.
ATTEMPTS_MAX = 100
#: Those that fail by themselves do so soon.
DOOMED_ATTEMPTS_MAX = 2
CONCURRENCY = 50
GRACE_SECONDS = 5.0

#: No unique key: that the effect of a job exists once must not be the doing of this table.
EFFECTS = "create table soak_effects (job_id uuid not null, token bigint not null)"
EFFECTS_WRITTEN = "select job_id, token from soak_effects"
_EFFECT = "insert into soak_effects values (%s, %s)"


async def nothing(n: int) -> int:
    return n


async def wait(n: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return n


async def effect(job: Job, n: int) -> None:
    """An effect that must exist exactly once, and the completion, in one transaction."""
    async with job.transaction() as tx:
        await tx.execute(_EFFECT, (job.id, job.fencing_token))
        tx.complete(n)


def effect_in_thread(job: BlockingJob, n: int) -> None:
    with job.transaction() as tx:
        tx.execute(_EFFECT, (job.id, job.fencing_token))
        tx.complete(n)


def wait_in_thread(n: int, seconds: float) -> int:
    time.sleep(seconds)
    return n


async def stumble(job: Job, n: int) -> int:
    if job.attempt == 1:
        raise RuntimeError("stumbles the first time")
    return n


def stumble_in_thread(job: BlockingJob, n: int) -> int:
    if job.attempt == 1:
        raise RuntimeError("stumbles the first time")
    return n


async def walk(job: Job, n: int) -> list[int]:  # noqa: ARG001 - the number is for those who count
    """Two steps that never give the same twice: whoever does one again would be found out by the result."""
    return [await job.step(name, secrets.randbits, 32) for name in ("first", "second")]


def walk_in_thread(job: BlockingJob, n: int) -> list[int]:  # noqa: ARG001 - likewise
    return [job.step(name, secrets.randbits, 32) for name in ("first", "second")]


#: Tasks that take the time that they are told.
WITH_SECONDS = frozenset({wait.__name__, wait_in_thread.__name__, *(task.__name__ for task in mischief.EVERY_SECONDS)})
WITH_EFFECT = frozenset({effect.__name__, effect_in_thread.__name__})
WITH_STEPS = (walk.__name__, walk_in_thread.__name__)
#: They fail once by themselves; of all others only those do that are expected to fail for good.
STUMBLING = frozenset({stumble.__name__, stumble_in_thread.__name__}) | limits.STUMBLING
_INNOCENT = (nothing, wait, wait_in_thread, effect, effect_in_thread, stumble, stumble_in_thread, walk, walk_in_thread)


def register(app: Faultline) -> dict[str, Task[..., Any]]:
    """Make them tasks of this application."""
    options: dict[str, Any] = {"lease": LEASE_SECONDS, "backoff": lambda _: 0.2}
    every: tuple[Callable[..., Any], ...] = (*_INNOCENT, *mischief.TASKS.values())
    for task in every:
        attempts = DOOMED_ATTEMPTS_MAX if task.__name__ in mischief.DOOMED | mischief.ANY_END else ATTEMPTS_MAX
        limit = mischief.TIMEOUTS_SECONDS.get(task.__name__)
        app.task(max_attempts=attempts, timeout=limit, **options)(task)
    options["max_attempts"] = ATTEMPTS_MAX
    flows.register(app, options, {**options, "max_attempts": DOOMED_ATTEMPTS_MAX})
    limits.register(app, options)
    schedules.register(app, options)
    return app.tasks


def main() -> None:
    """Work until told to stop, or until whoever started this process is gone: nobody else would stop it then."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    dsn, tape = sys.argv[1:]
    with Recording.to(Path(tape), Path(tape).name) as recording:
        app = Faultline(dsn, host=recording.host())
        register(app)
        queues = {"default": CONCURRENCY, limits.QUEUE: limits.SLOTS}
        run_until_signalled(lambda: app.worker(queues, grace_seconds=GRACE_SECONDS))


def _end_with_parent() -> None:
    # The other end of this pipe is closed when the parent ends, in whatever way.
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()

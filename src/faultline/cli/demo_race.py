"""Lease races for `faultline up`, so that the dashboard has refused writes to show.

The race plays two workers through the verbs, on its own queue. The first stalls while it holds the job; its lease expires
and a real worker reaps it; the second claims the job; then the first comes back to write.
"""

from __future__ import annotations

import itertools
import signal
import threading
from typing import TYPE_CHECKING

from faultline.cli.commands.database import resolved
from faultline.core.errors import FaultlineError
from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease

QUEUE = "races"
_LEASE_SECONDS = 2.0
_TAKEN_OVER_SECONDS = 15.0
_PAUSE_SECONDS = 20.0
_calls = itertools.count(1)


def race(database: Database, turn: int, wait: Callable[[float], object]) -> None:
    """From the enqueue to the ledger. `wait` lets time pass."""
    job = Submission("settle_batch", f'{{"batch": {turn}}}', QUEUE, lease_seconds=_LEASE_SECONDS)
    database.run(verbs.enqueue_many([job]))
    stalled = _taken(database, "worker-A", wait)
    wait(_LEASE_SECONDS / 2)
    database.run(verbs.renew([stalled]))
    second = _taken(database, "worker-B", wait)
    wait(_LEASE_SECONDS / 2)
    database.run(verbs.renew([second]))
    wait(0.5)
    database.run(verbs.complete([stalled], ['"too late"']))
    wait(1.0)
    database.run(verbs.complete([second], ['"settled"']))


def _taken(database: Database, name: str, wait: Callable[[float], object]) -> Lease:
    for _ in range(int(_TAKEN_OVER_SECONDS / 0.2)):
        # The protocol needs a new owner for every claim.
        leases = database.run(verbs.claim(QUEUE, owner=f"{name}/{next(_calls)}", max_jobs=1))
        if leases:
            return leases[0]
        wait(0.2)
    raise FaultlineError(f"no job of the queue {QUEUE} was requeued within {_TAKEN_OVER_SECONDS:g} s; is a worker running?")


def main() -> None:
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with resolved(None) as dsn:
        database = Database(dsn)
        for turn in itertools.count(1):
            try:
                race(database, turn, stopped.wait)
            except FaultlineError as error:
                print(f"lease race {turn}: {error}", flush=True)
            if stopped.wait(_PAUSE_SECONDS):
                break
        database.close()


if __name__ == "__main__":
    main()

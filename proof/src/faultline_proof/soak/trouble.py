"""The faults of a soak: which, when, whether it took effect, and how long it took until all was well again.

The first round has every kind once, in random order; after that chance decides. The seed gives the same plan again, not the
same soak: which job is hit depends on how fast the machine is.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import psycopg

from faultline.core.errors import FaultlineError
from faultline.store.database import run_on
from faultline.store.install import migrate
from faultline_proof.reads import audit
from faultline_proof.soak import mischief
from faultline_proof.soak.tasks import LEASE_SECONDS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterator
    from datetime import datetime
    from uuid import UUID

    from faultline.store.database import Database
    from faultline_proof.reads.audit import Held
    from faultline_proof.soak.crew import Crew, Member
    from faultline_proof.soak.servers import Servers

KILL = "worker killed"
FREEZE = "worker frozen past its lease"
CUT = "connections cut"
RESTART = "server killed"
CANCEL = "statements cancelled"
LOCK = "table locked"
LIE = "hints that lie"
MIGRATE = "migrated beside workers"
PROMOTE = "standby promoted"
#: How often each is chosen. A promotion takes a new standby afterwards, so there are few.
_WEIGHTS: dict[str, float] = {KILL: 4, FREEZE: 3, CUT: 4, RESTART: 1, CANCEL: 4, LOCK: 2, LIE: 3, MIGRATE: 1, PROMOTE: 0.2}
#: Of one that did not take effect in the first round.
_WEIGHT_MISSING = 10
#: Those that jobs bring with them are counted by their jobs.
KINDS = (*_WEIGHTS, *mischief.KINDS)
_PAUSE_SECONDS = 3.0
_AGAIN_SECONDS = 0.1
_LOOK_SECONDS = 0.2
_SERVER_SECONDS = 60.0
_LOCK_SECONDS_MIN, _LOCK_SECONDS_MAX = 1.0, 15.0
#: What a plain `create index` takes, and what keeps all writers and row locks away.
_LOCKS = (
    ("faultline.ledger", "share"),
    ("faultline.open_jobs", "exclusive"),
    ("faultline.steps", "exclusive"),
    ("faultline.journal", "exclusive"),
    ("faultline.limited_queues", "exclusive"),
    ("faultline.schedules", "exclusive"),
)
_GARBAGE = ("", "{", "[]", "7", '{"cancelled": 7}', '{"queue": 1}', "x" * 7000)
_FLOOD = 300


class Trouble:
    def __init__(
        self,
        database: Database,
        servers: Servers,
        crew: Crew,
        chance: random.Random,
        *,
        kinds: Collection[str],
        seconds: float,
    ) -> None:
        self._kinds = [kind for kind in _WEIGHTS if kind in kinds]
        self._database = database
        self._servers = servers
        self._crew = crew
        self._chance = chance
        self._plan = self._planned()
        self._next = next(self._plan)
        # A short soak must come through its first round as well.
        self._pause = min(_PAUSE_SECONDS, seconds / (2 * len(self._kinds)))
        self._lock_seconds_max = min(_LOCK_SECONDS_MAX, seconds / 10)
        #: What takes its time is done beside the rest, and counted when it is done.
        self._beside: dict[str, threading.Thread] = {}
        self._begun = time.monotonic()
        self._until = self._begun + seconds
        self._due = self._begun + self._pause
        self._look_at = 0.0
        #: What killed workers held, until it is seen in other hands.
        self._awaited: dict[UUID, Held] = {}
        self.took_effect: Counter[str] = Counter()
        #: (seconds from the start, kind)
        self.moments: list[tuple[float, str]] = []
        #: Seconds from the kill of a worker until each job that it held was run again.
        self.recoveries: list[float] = []
        #: Seconds from the kill of the server until it answered again.
        self.outages: list[float] = []

    @property
    def round_done(self) -> bool:
        """Every kind took effect at least once."""
        return all(self.took_effect[kind] for kind in self._kinds)

    @property
    def over(self) -> bool:
        """Nothing that was begun is still going on."""
        return not any(thread.is_alive() for thread in self._beside.values())

    def tick(self) -> None:
        """Do what is due. A fault that would hit nobody waits until it hits somebody."""
        now = time.monotonic()
        if now < self._due:
            return
        if self._strike(self._next):
            if self._next not in self._beside:
                self._count(self._next)
            self._next = next(self._plan)
            self._due = time.monotonic() + self._pause * self._chance.uniform(0.4, 1.4)
        else:
            if self._next in self._beside:  # it is still going on
                self._next = next(self._plan)
            self._due = now + _AGAIN_SECONDS

    def look_for_recovered(self) -> None:
        """See which jobs of killed workers are in other hands by now."""
        now = time.monotonic()
        if not self._awaited or now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        for claim in self._database.run(audit.claims(list(self._awaited))):
            held = self._awaited[claim.job_id]
            if claim.fencing_token > held.fencing_token:
                self.recoveries.append(max(0.0, (claim.at - held.at).total_seconds()))
            elif not claim.ended:  # one whose completion was on its way when the worker died needs no other hands
                continue
            del self._awaited[claim.job_id]

    def _count(self, kind: str) -> None:
        self.took_effect[kind] += 1
        self.moments.append((time.monotonic() - self._begun, kind))

    def _planned(self) -> Iterator[str]:
        yield from self._chance.sample(self._kinds, len(self._kinds))
        while True:
            # What is only waited for must not be undone by the others.
            usual = 0.0 if time.monotonic() > self._until and not self.round_done else 1.0
            weights = [usual * _WEIGHTS[kind] if self.took_effect[kind] else _WEIGHT_MISSING for kind in self._kinds]
            yield self._chance.choices(self._kinds, weights=weights)[0]

    def _strike(self, kind: str) -> bool:
        strikes = {
            KILL: self._kill,
            FREEZE: self._freeze,
            CUT: self._cut,
            RESTART: self._restart,
            CANCEL: self._cancel,
            LOCK: self._lock,
            LIE: self._lie,
            MIGRATE: self._migrate,
            PROMOTE: self._promote,
        }
        return strikes[kind]()

    def _kill(self) -> bool:
        victim = self._busy_member()
        if victim is None:
            return False
        self._crew.kill(victim)
        held = self._database.run(audit.held_by(victim.pid))
        self._awaited |= {job.job_id: job for job in held}
        return bool(held)

    def _freeze(self) -> bool:
        if self._crew.frozen >= max(1, len(self._crew.members) // 2):
            return False
        victim = self._busy_member()
        if victim is None:
            return False
        self._crew.freeze(victim, LEASE_SECONDS * self._chance.uniform(1.5, 3))
        return bool(self._database.run(audit.held_by(victim.pid)))

    def _cut(self) -> bool:
        there = self._database.run(audit.sessions())
        chosen = self._chance.sample(there, min(len(there), self._chance.randint(1, 8)))
        return self._database.run(audit.end_sessions(chosen)) > 0

    def _restart(self) -> bool:
        before = self._database.run(audit.server_start())
        return self._away(self._servers.kill, before)

    def _promote(self) -> bool:
        """The primary dies, and a standby that has all that was acknowledged takes over."""
        if not self._servers.standby_follows:
            return False
        before = self._database.run(audit.server_start())
        return self._away(self._servers.promote, before)

    def _away(self, strike: Callable[[], bool], before: datetime) -> bool:
        """Until the server, or another one in its place, can be used again."""
        killed_at = time.monotonic()
        if not strike():
            return False
        while self._server_start() in (None, before):
            if time.monotonic() - killed_at > _SERVER_SECONDS:
                raise FaultlineError(f"the server did not come back within {_SERVER_SECONDS:g} s")
            time.sleep(0.02)
        self.outages.append(time.monotonic() - killed_at)
        return True

    def _cancel(self) -> bool:
        """Several times in a row, so that what is sent again is hit as well."""
        hit = 0
        for _ in range(self._chance.randint(1, 30)):
            hit += self._database.run(audit.cancel_statements(self._chance.randint(1, 8)))
            time.sleep(0.005)
        return hit > 0

    def _lock(self) -> bool:
        table, mode = self._chance.choice(_LOCKS)
        seconds = self._chance.uniform(min(_LOCK_SECONDS_MIN, self._lock_seconds_max), self._lock_seconds_max)
        return self._start(LOCK, lambda connection: _hold_lock(connection, table, mode, seconds))

    def _migrate(self) -> bool:
        return self._start(MIGRATE, _replace_definitions)

    def _start(self, kind: str, act: Callable[[psycopg.Connection], bool]) -> bool:
        """Do something in a session of its own, which may be cut like any other: then it has not happened."""

        def run() -> None:
            with contextlib.suppress(psycopg.Error, FaultlineError), self._database.connect() as connection:
                if act(connection):
                    self._count(kind)

        before = self._beside.get(kind)
        if before is not None and before.is_alive():
            return False
        self._beside[kind] = threading.Thread(target=run, name=kind, daemon=True)
        self._beside[kind].start()
        return True

    def _lie(self) -> bool:
        """Anyone who can log in may notify: of running jobs that they are cancelled, and whatever else."""
        running = self._database.run(audit.running(20))
        lies = [json.dumps({"cancelled": str(job_id)}) for job_id in running]
        work = json.dumps({"queue": "default", "priority": 0, "run_at": "1970-01-01T00:00:00+00:00"})
        # Notifications of one transaction that are the same are sent once.
        flood = [work[:-1] + f', "n": {number}}}' for number in range(_FLOOD)]
        self._database.run(audit.notify([*lies, *_GARBAGE, *flood]))
        return bool(lies)

    def _server_start(self) -> datetime | None:
        try:
            return self._database.run(audit.server_start())
        except FaultlineError:
            return None

    def _busy_member(self) -> Member | None:
        at_work = [member for member in self._crew.members if member.at_work]
        self._chance.shuffle(at_work)
        return next((member for member in at_work if self._database.run(audit.held_by(member.pid))), None)


def _hold_lock(connection: psycopg.Connection, table: str, mode: str, seconds: float) -> bool:
    """Whether somebody waited for it."""
    connection.execute(f"begin; lock table {table} in {mode} mode".encode())
    time.sleep(seconds)
    waiting = run_on(connection, audit.waiting_for(table))
    connection.execute("rollback")
    return waiting > 0


def _replace_definitions(connection: psycopg.Connection) -> bool:
    """Take the definitions for another build's, so that `migrate` replaces all of them."""
    connection.execute("comment on function faultline.protocol() is 'definitions of another build'")
    return bool(migrate.migrate(connection))

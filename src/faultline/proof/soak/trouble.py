"""The faults of a soak: which, when, whether it took effect, and how long it took until all was well again.

The first round has every kind once, in random order; after that chance decides. The seed gives the same plan again, not the
same soak: which job is hit depends on how fast the machine is.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

from faultline import embedded
from faultline.core.errors import FaultlineError
from faultline.proof.soak.tasks import LEASE_SECONDS
from faultline.store import audit

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path
    from uuid import UUID

    from faultline.proof.soak.crew import Crew, Member
    from faultline.store.audit import Held
    from faultline.store.database import Database

KILL = "worker killed"
FREEZE = "worker frozen past its lease"
CUT = "connections cut"
RESTART = "server killed"
KINDS = (KILL, FREEZE, CUT, RESTART)
_WEIGHTS = (4, 3, 4, 1)
_PAUSE_SECONDS = 3.0
_AGAIN_SECONDS = 0.1
_LOOK_SECONDS = 0.2
_SERVER_SECONDS = 60.0


class Trouble:
    def __init__(self, database: Database, folder: Path, crew: Crew, chance: random.Random, *, seconds: float) -> None:
        self._database = database
        self._folder = folder
        self._crew = crew
        self._chance = chance
        self._plan = self._kinds()
        self._next = next(self._plan)
        # A short soak must come through its first round as well.
        self._pause = min(_PAUSE_SECONDS, seconds / (2 * len(KINDS)))
        self._begun = time.monotonic()
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
        return all(self.took_effect[kind] for kind in KINDS)

    def tick(self) -> None:
        """Do what is due. A fault that would hit nobody waits until it hits somebody."""
        now = time.monotonic()
        if now < self._due:
            return
        if self._strike(self._next):
            self.took_effect[self._next] += 1
            self.moments.append((now - self._begun, self._next))
            self._next = next(self._plan)
            self._due = time.monotonic() + self._pause * self._chance.uniform(0.4, 1.4)
        else:
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

    def _kinds(self) -> Iterator[str]:
        yield from self._chance.sample(KINDS, len(KINDS))
        while True:
            yield self._chance.choices(KINDS, weights=_WEIGHTS)[0]

    def _strike(self, kind: str) -> bool:
        match kind:
            case "worker killed":
                return self._kill()
            case "worker frozen past its lease":
                return self._freeze()
            case "connections cut":
                return self._cut()
            case _:
                return self._restart()

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
        pid = embedded.status(self._folder).pid
        if pid is None:
            return False
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while self._server_start() in (None, before):
            if time.monotonic() - killed_at > _SERVER_SECONDS:
                raise FaultlineError(f"the server of {self._folder} did not come back within {_SERVER_SECONDS:g} s")
            time.sleep(0.02)
        self.outages.append(time.monotonic() - killed_at)
        return True

    def _server_start(self) -> datetime | None:
        try:
            return self._database.run(audit.server_start())
        except FaultlineError:
            return None

    def _busy_member(self) -> Member | None:
        at_work = [member for member in self._crew.members if member.at_work]
        self._chance.shuffle(at_work)
        return next((member for member in at_work if self._database.run(audit.held_by(member.pid))), None)

"""What goes wrong in the world: faults of every kind at random, for a while. Whatever is broken at the end is repaired."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from faultline_proof.world.limits import LIMITS, SCHEDULES, UNIQUE
from faultline_proof.world.server import Refusal

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable, Coroutine, Sequence
    from uuid import UUID

    from faultline_proof.world.hosts import SimulatedHost
    from faultline_proof.world.server import Server
    from faultline_proof.world.weather import Record

STORM_SECONDS = 28.0
#: From one fault to the next.
FAULT_SECONDS = 1.5
_FAULT_SECONDS_MIN, _FAULT_SECONDS_MAX = 0.5, 10.0
_RESTART_SECONDS_MAX = 3.0

#: Errors of a statement that are about the moment, none of them about a job.
SQLSTATES = {
    "57014": "query canceled",
    "55P03": "lock not available",
    "40001": "serialization failure",
    "40P01": "deadlock detected",
    "25006": "read-only transaction",
    "53100": "disk full",
    "53200": "out of memory",
    "58030": "I/O error",
    "XX000": "internal error",
}
#: What a plain `create index` takes, and what keeps all writers and row locks away.
_LOCKS = (
    ("faultline.ledger", "share"),
    ("faultline.ledger", "exclusive"),
    ("faultline.open_jobs", "exclusive"),
    ("faultline.steps", "exclusive"),
    ("faultline.journal", "exclusive"),
    ("faultline.workers", "exclusive"),
    ("faultline.calls", "exclusive"),
    ("faultline.nudges", "exclusive"),
    ("faultline.limited_queues", "exclusive"),
    ("faultline.schedules", "exclusive"),
)
_GARBAGE = ("", "{", "null", "[]", "7", '{"cancelled": 7}', '{"cancelled": null}', '{"queue": 1}', "x" * 7000)

#: What is wrong with jobs, and not with the world: they are submitted among the others.
ODD_JOBS = ("one attempt", "snoozes and retries", "misbehaving tasks", "unknown tasks", "flows", UNIQUE)
#: Half of the seeds play each of them.
PARTS = (LIMITS, SCHEDULES)
#: Only its task or the loss of its worker uses up an attempt of a job.
ATTEMPTS_JUDGED = "attempts judged"
#: What is told of a server that refuses connections.
TURNS_AWAY = "turns away"
#: How often each kind is chosen.
KINDS = {
    "crash": 4,
    "freeze": 4,
    "cut off": 2,
    "slow": 2,
    "restart": 2,
    "promotion": 2,
    "loop blocked": 3,
    "statements refused": 3,
    "connections refused": 1,
    "tables locked": 3,
    "hints that lie": 3,
    "clock set forward": 2,
    **dict.fromkeys((*ODD_JOBS, *PARTS), 0),
    ATTEMPTS_JUDGED: 0,
}
DEFAULT = tuple(KINDS)
#: By how much the clock is set: from one and a half leases on.
_STEP_SECONDS, _STEPS_APART_SECONDS = (6.0, 20.0), 9.0
_OF_A_HOST = frozenset({"crash", "freeze", "cut off", "slow", "loop blocked"})


class Storm:
    """`known` gives the ids of the jobs that are known so far: what is said of them in hints is a lie."""

    def __init__(
        self,
        hosts: list[SimulatedHost],
        server: Server,
        record: Record,
        chance: random.Random,
        known: Callable[[], Sequence[UUID]],
    ) -> None:
        self._hosts = hosts
        self._server = server
        self._record = record
        self._chance = chance
        self._known = known
        self._set_at = 0.0

    async def blow(self, kinds: Sequence[str], counts: Counter[str]) -> None:
        """Faults of these kinds. `counts` are those that took effect. Without any, the weather is fair for as long."""
        loop, chance = asyncio.get_running_loop(), self._chance
        kinds = [kind for kind in kinds if KINDS[kind]]
        weights = [KINDS[kind] for kind in kinds]
        if not kinds:
            await asyncio.sleep(STORM_SECONDS)
            return
        running: set[asyncio.Task[bool]] = set()
        while loop.time() < STORM_SECONDS:
            await asyncio.sleep(chance.expovariate(1 / FAULT_SECONDS))
            (kind,) = chance.choices(kinds, weights=weights)
            able = [host for host in self._hosts if host.up]
            if kind in _OF_A_HOST and not able:
                continue
            host = chance.choice(able) if able else self._hosts[0]
            fault = self._fault(kind, host, chance.uniform(_FAULT_SECONDS_MIN, _FAULT_SECONDS_MAX))
            running.add(loop.create_task(self._counted(kind, fault, counts)))
        await asyncio.gather(*running)

    async def _counted(self, kind: str, fault: Coroutine[Any, Any, bool | None], counts: Counter[str]) -> bool:
        took_effect = await fault is not False
        counts[kind] += took_effect
        return took_effect

    def _fault(self, kind: str, host: SimulatedHost, seconds: float) -> Coroutine[Any, Any, bool | None]:  # noqa: C901 - a line for each kind
        fault: Coroutine[Any, Any, bool | None]
        chance = self._chance
        match kind:
            case "crash":
                fault = host.crash(seconds, chance.choice([0.0, 0.0, chance.uniform(0, 10)]))
            case "freeze":
                fault = host.freeze(seconds)
            case "cut off":
                fault = host.cut_off(seconds)
            case "slow":
                fault = host.slow_down(seconds)
            case "loop blocked":
                fault = host.block_loop(seconds)
            case "statements refused":
                fault = self._refuse(Refusal(chance.choice(list(SQLSTATES)), chance.uniform(0.1, 1.0)), seconds)
            case "connections refused":
                fault = self._refuse(Refusal("53300", chance.uniform(0.3, 1.0), connections=True), seconds)
            case "tables locked":
                fault = self._lock(*chance.choice(_LOCKS), seconds * 1.5)
            case "hints that lie":
                fault = self._lie()
            case "clock set forward":
                fault = self._set_forward(chance.uniform(*_STEP_SECONDS))
            case _:
                fault = self._restart(kind, min(seconds, _RESTART_SECONDS_MAX))
        return fault

    async def _restart(self, kind: str, seconds: float) -> None:
        """Or a promotion: every session ends, with its locks, and after a while there is a server again with everything."""
        self._record.note("server", kind, f"{seconds:.1f} s")
        self._server.restart()
        await asyncio.sleep(seconds)
        self._server.up = True

    async def _refuse(self, refusal: Refusal, seconds: float) -> bool:
        if self._server.refusal is not None:
            return False
        before = self._server.refused
        what = "too many connections" if refusal.connections else SQLSTATES[refusal.sqlstate]
        verb = TURNS_AWAY if refusal.connections else "refuses"
        self._record.note("server", verb, f"{refusal.share:.0%} with {refusal.sqlstate} ({what}) for {seconds:.1f} s")
        self._server.refusal = refusal
        await asyncio.sleep(seconds)
        self._server.refusal = None
        self._record.note("server", "refuses none", f"{self._server.refused - before} were refused")
        return self._server.refused > before

    async def _lock(self, table: str, mode: str, seconds: float) -> bool:
        loop, before = asyncio.get_running_loop(), self._server.waited
        give_up = loop.time() + seconds
        while self._server.locked or not self._server.up or not self._server.lock(table, mode):
            if loop.time() > give_up:
                return False
            await asyncio.sleep(0.1)
        self._record.note("server", "locked", f"{table} in {mode} mode for {seconds:.1f} s")
        await asyncio.sleep(seconds)
        self._server.unlock()
        self._record.note("server", "unlocked", f"{table}, {self._server.waited - before} waited")
        return self._server.waited > before

    async def _set_forward(self, seconds: float) -> bool:
        """The server's clock jumps: all leases have expired, and no worker has been heard. Rarely: after it nobody reaps."""
        now = asyncio.get_running_loop().time()
        if now < self._set_at + _STEPS_APART_SECONDS:
            return False
        self._set_at = now
        self._server.clock_steps.append((len(self._record.lines), seconds))
        self._record.note("server", "clock set forward", f"{seconds:.1f} s")
        return True

    async def _lie(self) -> bool:
        """Anyone who can log in may notify. Running jobs are called cancelled, and the rest is noise."""
        known = self._known()
        lies = [json.dumps({"cancelled": str(self._chance.choice(known))}) for _ in range(8)] if known else []
        heard = 0
        for payload in [*lies, *self._chance.sample(_GARBAGE, 3)]:
            heard += self._server.notify(payload)
            self._record.note("server", "lies", f"{payload[:60]} to {heard}")
        return heard > 0

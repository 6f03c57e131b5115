"""A hammer with stamps: real workers under limits, while somebody kills and freezes them, kills the server, changes limits,
cancels in bulk, and leaves transactions open and prepared.

Jobs stamp their own beginnings and ends, and the judge goes by these stamps alone: at no start do more run than a limit
allows, and a group that keeps its order keeps it. Somebody looks all the time whether a due job waits although it may start.

`python -m tests.limits.stamped RUNS [SEED]` goes on until so many attempts have begun.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from faultline import Faultline, FaultlineError
from faultline.store.database import run_on
from faultline.store.reads import invariants
from faultline_proof.postgres import Postgres
from tests.limits.stamping import GROUP_LIMIT, GROUPS, LEASE_SECONDS, QUEUE, QUEUE_LIMIT, STRICT, TABLE, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

ROOT = Path(__file__).parents[2]
WORKERS, SLOTS, BACKLOG = 4, 8, 600
#: So long may a due job wait that may start. A claim that somebody leaves open is ended after five seconds, and the jobs of
#: a killed worker are taken over when their leases have run out.
STUCK_SECONDS = 12.0
DRAIN_SECONDS = 120.0
_CHAOS: dict[str, float] = {
    "kill": 2, "freeze": 2, "change": 0.6, "cancel": 1, "enqueue": 3, "claim": 2, "upkeep": 1, "restart": 0.25,
}  # fmt: skip


#: What is set for the queue, for each of its groups, and for one of them.
_VALUES: dict[str, list[int | None]] = {"": [2, 6, 12, 20], "*": [1, 3, 5], "g0": [1, 4, None]}
_FORESEEN = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.FeatureNotSupported)


class Run(NamedTuple):
    """One attempt, as it was stamped."""

    group: str
    #: A worker that was frozen begins later what it was granted, as long as its lease lasts.
    claimed: float
    began: float
    #: Its code ended, its worker died, or its lease was taken away: it no longer counts.
    ended: float
    job_id: Any


class Setting(NamedTuple):
    """What limits held from some moment on."""

    #: Before it was sent, and after its commit was answered.
    sent: float
    known: float
    limits: dict[str, int]

    def of(self, key: str) -> int:
        return self.limits[""] if not key else self.limits.get(key, 1 if key == STRICT else self.limits["*"])


@dataclass
class Stamped:
    """What a hammer did and found."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    deaths: dict[int, float] = field(default_factory=dict)
    longest_wait: float = 0.0
    most_at_once: int = 0


class Worker:
    def __init__(self, dsn: str, deaths: dict[int, float]) -> None:
        environ = {**os.environ, "FAULTLINE_DSN": dsn}
        command = [sys.executable, "-m", "faultline", "worker", "tests.limits.stamping:app", "--queue", f"{QUEUE}={SLOTS}"]
        self._deaths = deaths
        self.thaws_at: float | None = None
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._deaths[self.process.pid] = time.time()

    def freeze(self, seconds: float) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        self.thaws_at = time.monotonic() + seconds

    def thaw(self) -> None:
        self.thaws_at = None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)


class Hammer:
    def __init__(self, server: Postgres, seed: int) -> None:
        self._server = server
        self._chance = random.Random(seed)
        self.found = Stamped()
        self._app = Faultline(server.dsn, timeout=5)
        self._workers = [Worker(server.dsn, self.found.deaths) for _ in range(WORKERS)]
        self._limits = {"": QUEUE_LIMIT, "*": GROUP_LIMIT}
        #: Since when a group has had due jobs and room, and how many of its runs had begun then.
        self._waits: dict[str, tuple[float, int]] = {}
        self._set(None, None)

    # What goes on all the time

    def strike(self, runs: int) -> None:
        """Until so many attempts have begun."""
        trouble_at = 0.0
        done = False
        while not done:
            try:
                with psycopg.connect(self._server.dsn, autocommit=True) as connection:
                    while self._begun(connection) < runs:
                        self._produce(connection)
                        self._look(connection)
                        self._tend()
                        if time.monotonic() >= trouble_at:
                            self._trouble()
                            trouble_at = time.monotonic() + self._chance.uniform(0.05, 0.8)
                        time.sleep(0.02)
                    done = True
            except (psycopg.OperationalError, FaultlineError) as error:
                self.found.counts[f"outage: {type(error).__name__}"] += 1
                self._waits.clear()

    @staticmethod
    def _begun(connection: psycopg.Connection) -> int:
        (number,) = connection.execute("select count(*) from stamps").fetchone() or (0,)
        return int(number)

    def _produce(self, connection: psycopg.Connection) -> None:
        """Keep some waiting. Those of the strict group are enqueued here alone, so their order is known."""
        query = "select count(*) from faultline.open_jobs where queue = %s and state = 'queued'"
        (waiting,) = connection.execute(query, (QUEUE,)).fetchone() or (0,)
        if waiting < BACKLOG:
            self._app.enqueue_many([self._job(strict=True) for _ in range(200)])

    def _job(self, *, strict: bool) -> Any:
        chance = self._chance
        number = min(int(chance.expovariate(0.3)), GROUPS - 1 if strict else GROUPS - 2)
        delay = chance.random() * 0.5 if not strict and chance.random() < 0.2 else 0.0
        seconds = chance.choice([0.001, 0.005, 0.01, 0.02]) if chance.random() < 0.99 else 0.5
        return stamp.options(delay=delay).bind(group=f"g{number}", seconds=seconds, stumbles=chance.random() < 0.03)

    def _tend(self) -> None:
        now = time.monotonic()
        for place, worker in enumerate(self._workers):
            if worker.thaws_at is not None and now >= worker.thaws_at:
                worker.thaw()
            if worker.process.poll() is not None:
                worker.kill()
                self._workers[place] = Worker(self._server.dsn, self.found.deaths)

    def _look(self, connection: psycopg.Connection) -> None:
        """A due job of a group with room, in a queue with room, is started in time."""
        self.found.counts["looks"] += 1
        holding: dict[str, int] = dict(connection.execute(_HOLDING, (QUEUE,)).fetchall())
        now, setting = time.monotonic(), self.found.settings[-1]
        if sum(holding.values()) >= setting.of(""):
            self._waits.clear()
            return
        begun: dict[str, int] = dict(connection.execute("select group_key, count(*) from stamps group by 1").fetchall())
        due = {key for (key,) in connection.execute(_DUE, (QUEUE,)).fetchall() if holding.get(key, 0) < setting.of(key)}
        self._waits = {key: self._waits.get(key, (now, begun.get(key, 0))) for key in due}
        for key, (since, number) in list(self._waits.items()):
            if begun.get(key, 0) != number:
                del self._waits[key]
                continue
            self.found.longest_wait = max(self.found.longest_wait, now - since)
            if now - since > STUCK_SECONDS:
                self.found.wrong.append(f"due jobs of {key} have waited for {now - since:.1f} s beside free permits")
                del self._waits[key]

    # Trouble

    def _trouble(self) -> None:
        (kind,) = self._chance.choices(list(_CHAOS), weights=list(_CHAOS.values()))
        self.found.counts[kind] += 1
        doing: Callable[[], None] = getattr(self, f"_{kind}")
        doing()

    def _kill(self) -> None:
        self._chance.choice(self._workers).kill()

    def _freeze(self) -> None:
        worker = self._chance.choice(self._workers)
        if worker.thaws_at is None and worker.process.poll() is None:
            worker.freeze(self._chance.uniform(0.1, 2.5 * LEASE_SECONDS))

    def _restart(self) -> None:
        self._server.kill()
        self._server.start()
        self._waits.clear()

    def _change(self) -> None:
        key = self._chance.choice(list(_VALUES))
        self._set(key, self._chance.choice(_VALUES[key]))

    def _set(self, key: str | None, value: int | None) -> None:
        """Set a limit, or take it back. None as the key: only write down what holds."""
        sent, wanted = time.time(), dict(self._limits)
        if key is not None:
            wanted.pop(key, None) if value is None else wanted.update({key: value})
            done = False
            with self._session() as connection:
                with self._transaction(connection) as transaction:
                    if value is None:
                        connection.execute("select faultline.reset_limit(%s, %s, 'ada')", (QUEUE, key))
                    else:
                        fields = json.dumps({"concurrency": value})
                        connection.execute("select faultline.set_limit(%s, %s, %s::jsonb, 'ada')", (QUEUE, key, fields))
                    self._hold()
                done = not transaction.force_rollback
            if not done:
                return
        self._limits = wanted
        self.found.settings.append(Setting(sent, time.time(), wanted))
        self._waits.clear()

    def _cancel(self) -> None:
        """Hundreds of a group at once, running ones among them; perhaps taken back."""
        group = f"g{self._chance.randrange(GROUPS - 1)}"
        self._leave("select count(faultline.cancel(id)) from (select id from faultline.open_jobs where queue = %s"
                    " and group_key = %s and state in ('queued', 'running') limit 300 for update skip locked) hundreds",
                    (QUEUE, group))  # fmt: skip

    def _enqueue(self) -> None:
        jobs = [self._job(strict=False) for _ in range(20)]
        rows = [{"task": "stamp", "queue": QUEUE, "group": json.loads(one.args)["group"], "args": json.loads(one.args),
                 "lease_seconds": LEASE_SECONDS, "max_attempts": 1000} for one in jobs]  # fmt: skip
        self._leave("select count(*) from faultline.enqueue_many(%s)", (json.dumps(rows),))

    def _claim(self) -> None:
        """Somebody claims, and does not complete: taken back, or left until the leases end."""
        owner = f"somebody/{self.found.counts['claim']}"
        self._leave("select count(*) from faultline.claim(%s, %s, 5)", (QUEUE, owner))

    def _upkeep(self) -> None:
        self._leave("select faultline.maintain_limits()", ())

    def _leave(self, query: str, values: tuple[Any, ...]) -> None:
        """In a transaction that stays open for a while, or is prepared and ended by another session."""
        if self._chance.random() < 0.5:
            with self._session() as connection, self._transaction(connection):
                connection.execute(query.encode(), values)
                self._hold()
            return
        name = f"stamped {self.found.counts['prepared']}"
        with self._session() as connection, connection.transaction(force_rollback=True):
            connection.execute(query.encode(), values)
            connection.execute(f"prepare transaction '{name}'".encode())
            self.found.counts["prepared"] += 1
        self._hold()
        with self._session() as other:
            if other.execute("select from pg_prepared_xacts where gid = %s", (name,)).fetchone() is not None:
                other.execute(f"{self._chance.choice(['commit', 'rollback'])} prepared '{name}'".encode())

    def _hold(self) -> None:
        time.sleep(self._chance.choice([0, 0, 0.1, 0.4, 1.0]))

    @contextlib.contextmanager
    def _session(self) -> Iterator[psycopg.Connection]:
        """Somebody may hold what is wanted, and what notifies cannot be prepared: then nothing was done."""
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            connection.execute("set lock_timeout = '2s'")
            try:
                yield connection
            except _FORESEEN as error:
                self.found.counts[type(error).__name__] += 1

    def _transaction(self, connection: psycopg.Connection) -> Any:
        return connection.transaction(force_rollback=self._chance.random() < 0.3)

    # The end

    def drain(self) -> None:
        """Everybody is well again, and everything is run."""
        for worker in self._workers:
            worker.thaw()
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            for (name,) in connection.execute("select gid from pg_prepared_xacts").fetchall():
                connection.execute(f"rollback prepared '{name}'".encode())
            give_up = time.monotonic() + DRAIN_SECONDS
            query = "select count(*) from faultline.open_jobs where queue = %s and state in ('queued', 'running')"
            while (left := connection.execute(query, (QUEUE,)).fetchone()) != (0,):
                self._tend()
                self._look(connection)
                if time.monotonic() > give_up:
                    self.found.wrong.append(f"{left} jobs are left")
                    break
                time.sleep(0.05)
            for worker in self._workers:
                worker.kill()
            for name in invariants.names():
                broken = run_on(connection, invariants.invariant(name))
                if broken is not None:
                    self.found.wrong.append(f"{name}: {broken.rows}")
            self.found.wrong += list(judged(connection, self.found))

    def close(self) -> None:
        for worker in self._workers:
            worker.thaw()
            worker.kill()
        self._app.close()


#: How many permits each group holds: of those that run, and of those in order that are tried again.
_HOLDING = """
select group_key, count(*) from faultline.open_jobs
where queue = %s and (state = 'running' or (state = 'queued' and has_permit)) group by 1
"""
_DUE = "select distinct group_key from faultline.open_jobs where queue = %s and state = 'queued' and next_run_at <= now()"
#: When a lease ended that its holder did not end.
_TAKEN = """
select job_id, fencing_token, min(at) from faultline.journal
where event in ('lease_reaped', 'cancelled', 'recovered') and job_id is not null and fencing_token is not null group by 1, 2
"""


def judged(connection: psycopg.Connection, found: Stamped) -> Iterator[str]:
    """What was wrong, by the stamps."""
    taken = {(job_id, token): at.timestamp() for job_id, token, at in connection.execute(_TAKEN)}
    runs = []
    query = "select pid, job_id, token, group_key, coalesce(claimed, began), began, ended from stamps order by began"
    for pid, job_id, token, group, claimed, began, ended in connection.execute(query).fetchall():
        ends = [found.deaths.get(pid), taken.get((job_id, token)), _seconds(ended)]
        end = min(one for one in ends if one is not None)
        # A frozen worker may begin what was taken from it. Nothing it writes will count.
        found.counts["begun too late"] += end <= began.timestamp()
        if end > began.timestamp():
            runs.append(Run(group, claimed.timestamp(), began.timestamp(), end, job_id))
    found.counts["runs"] = len(runs)
    yield from _exceeded(runs, found)
    yield from _overtaken([run for run in runs if run.group == STRICT])


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _exceeded(runs: list[Run], found: Stamped) -> Iterator[str]:
    running: dict[str, list[Run]] = collections.defaultdict(list)
    for run in runs:
        for key in ("", run.group):
            beside = running[key] = [one for one in running[key] if one.ended > run.began]
            most = max(
                one.of(key)
                for one, after in zip(found.settings, [*found.settings[1:], None], strict=True)
                if one.sent <= run.began and (after is None or after.known >= run.claimed)
            )
            beside.append(run)
            if not key:
                found.most_at_once = max(found.most_at_once, len(beside))
            if len(beside) > most:
                yield f"{len(beside)} of {key or 'the queue'} ran at {run.began:.3f}, and {most} may: {beside}"


def _overtaken(runs: list[Run]) -> Iterator[str]:
    """Ids grow with the enqueues of one session. Each job has ended for good before the next one begins."""
    for earlier, later in itertools.pairwise(runs):
        if later.job_id < earlier.job_id:
            yield f"job {later.job_id} of {STRICT} ran at {later.began:.3f}, after the later job {earlier.job_id}"


def hammered(runs: int, seed: int = 1) -> Stamped:
    with (
        tempfile.TemporaryDirectory() as folder,
        Postgres(Path(folder) / "server", settings={"max_prepared_transactions": "20"}) as server,
    ):
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(TABLE)
        hammer = Hammer(server, seed)
        try:
            hammer.strike(runs)
            hammer.drain()
        finally:
            hammer.close()
        return hammer.found


def main() -> None:
    runs, seed = int(sys.argv[1]), int((sys.argv[2:] or ["1"])[0])
    begun = time.monotonic()
    found = hammered(runs, seed)
    took = time.monotonic() - begun
    told = f"{took:.0f} s, longest wait {found.longest_wait:.2f} s, most at once {found.most_at_once}"
    sys.stdout.write("\n".join([str(dict(found.counts)), told, *(found.wrong[:20] or ["no violation"]), ""]))
    sys.exit(bool(found.wrong))


if __name__ == "__main__":
    main()

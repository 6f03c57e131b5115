"""Where a drill plays: a scratch database, real worker processes with faults, barriers, and the trace of it all.

Nothing is left to luck: a drill waits for what it sees in the database, and holds its actors back with barriers there.
All that its actors and its own clients send is on tape, for the history checker. Whatever it started is stopped when the
stage is left, also by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

import psycopg

from faultline.app.application import Faultline
from faultline.store import scratch
from faultline.store.reads import invariants, views
from faultline_proof import tape
from faultline_proof.checker import check
from faultline_proof.faults import Limits
from faultline_proof.history import Final
from faultline_proof.reads import holdings, proving
from faultline_proof.tape import Recording
from faultline_proof.tasks import WITH_EFFECT
from faultline_proof.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from faultline.core.host import Host
    from faultline.core.model import JournalEntry

T = TypeVar("T")

PATIENCE_SECONDS = 120.0
#: What a job may take once the faults are over: a lease, a sweep and its backoff at their defaults, on a busy machine.
SECONDS_TO_END = 45.0


class Actor:
    """One worker process. Its events are read from what it has written so far."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def events(self) -> list[dict[str, Any]]:
        # A line that was cut off by a kill is no event.
        lines = self._log.read_text(errors="replace").split("\n")[:-1]
        return [{"worker_name": self.name, **_parsed(line)} for line in lines if line]

    def saw(self, event: str) -> bool:
        return any(found["event"] == event for found in self.events())

    def starts(self) -> list[tuple[UUID, int]]:
        """(job, token) of every attempt that it began."""
        started = [event for event in self.events() if event["event"] == "execution_started"]
        return [(UUID(event["job_id"]), event["token"]) for event in started]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        return self.process.wait(seconds)


class Stage:
    """What a drill is given. `verdict` collects what was found."""

    def __init__(self, drill: str, server_dsn: str, *, mutant: str = "") -> None:
        self.verdict = Verdict(drill)
        #: The server that was named: a scratch database of it is where the drill plays.
        self.server_dsn = server_dsn
        #: SQL that takes a guard out of the protocol, to see whether the drill notices.
        self._mutant = mutant
        self._actors: list[Actor] = []
        self._stack = contextlib.ExitStack()
        self._belongings = contextlib.ExitStack()
        self._effects: str | None = None
        self._calm_at: float | None = None
        self.dsn = ""
        self.app: Faultline
        self._recording: Recording
        self._session: psycopg.Connection

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            dsn = stack.enter_context(scratch.database(self.server_dsn))
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faultline-drill-")))
            self._tapes = self.folder / "tapes"
            self._tapes.mkdir()
            self._recording = stack.enter_context(Recording.to(self._tapes / "drill", "drill"))
            self._belongings = stack.enter_context(contextlib.ExitStack())
            self.move_to(dsn)
            stack.callback(self._end_actors)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._collect_trace()
        self._stack.close()

    def keep(self, belonging: AbstractContextManager[T]) -> T:
        """Enter something that is needed until the last actor has ended: a proxy, or a server of the drill's own."""
        return self._belongings.enter_context(belonging)

    def move_to(self, dsn: str) -> None:
        """Play on in another database: on a server of the drill's own, or on the one that took over from it."""
        self.dsn = dsn
        self._session = self.keep(psycopg.connect(dsn, autocommit=True))
        if self._mutant:
            self._session.execute(self._mutant.encode())
        self.app = self.keep(Faultline(dsn, host=self.host()))

    def host(self, settings: dict[str, int] | None = None, **words: Any) -> Host:
        """For a client of the drill's own: what it sends is on tape."""
        return self._recording.host(settings, **words)

    # Actors

    def worker(
        self,
        name: str,
        *,
        queues: Sequence[str] = ("default=10",),
        faults: Sequence[str] = (),
        mute: bool = False,
        once: bool = False,
        skew: float = 0.0,
        patience: int | None = None,
        dsn: str | None = None,
    ) -> Actor:
        """Start a worker process. `dsn`: another way to the same database, through a proxy for example."""
        actor_name = f"{name}.{len(self._actors)}"
        words = [dsn or self.dsn, str(self._tapes / actor_name), "--skew", str(skew)]
        words += [] if patience is None else ["--patience", str(patience)]
        words += [word for queue in queues for word in ("--queue", queue)]
        words += [word for fault in faults for word in ("--fault", fault)]
        words += ["--mute"] * mute + ["--once"] * once
        log = self.folder / f"{actor_name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "faultline_proof.actor", *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        actor = Actor(name, process, log)
        self._actors.append(actor)
        return actor

    def workers(self) -> int:
        """How many workers are on the database's list."""
        return len(self.app.database.run(views.workers()))

    @contextlib.contextmanager
    def barrier(self, name: str) -> Iterator[None]:
        """Closed inside the block: whoever comes to `barrier:NAME` waits until it is left."""
        with psycopg.connect(self.dsn, autocommit=True) as session:
            session.execute("select pg_advisory_lock(hashtext(%s))", (name,))
            yield

    def wait_for_arrival(self, barrier: str, actors: int = 1) -> None:
        """Return once somebody waits at a closed barrier, or so many."""
        arrived = (
            "select count(*) from pg_locks l join pg_database d on d.oid = l.database"
            " where l.locktype = 'advisory' and not l.granted and l.objid::bigint = %s and d.datname = current_database()"
        )
        key = self.value("select hashtext(%s)::bigint & 4294967295", barrier)
        self.wait_for(lambda: bool(self.value(arrived, key) >= actors), f"{actors} wait at the barrier {barrier}")

    # What is seen

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        give_up = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > give_up:
                raise AssertionError(f"{self.verdict.drill}: not within {seconds:g} s: {what}")
            time.sleep(0.01)

    def value(self, query: str, *params: Any) -> Any:
        """The first value of a query of the drill's own."""
        row = self._session.execute(query.encode(), params or None).fetchone()
        return None if row is None else row[0]

    def rows(self, query: str, *params: Any) -> list[Any]:
        """All rows of a query of the drill's own."""
        return self._session.execute(query.encode(), params or None).fetchall()

    def execute(self, statements: str) -> None:
        """Do something to the database that no verb does."""
        self._session.execute(statements.encode())

    def make_effects(self) -> None:
        """The table that the task `apply` writes to."""
        self._session.execute("create table effects (job_id uuid, account integer, token bigint)")
        self._effects = "select job_id, token from effects"

    def effects(self) -> list[tuple[int, int]]:
        """(account, token) of every effect that was committed."""
        return self._session.execute("select account, token from effects order by account, token").fetchall()

    def standing(self, job_id: UUID) -> str:
        """How a job stands, for people to read: `succeeded, token 2`."""
        job = self.app.job(job_id)
        return f"{job.state}, token {job.fencing_token}"

    def wait_for_end(self, *job_ids: UUID) -> None:
        def ended() -> bool:
            endings, _ = self.app.database.run(views.final_states(job_ids))
            return len(endings) == len(set(job_ids))

        self.wait_for(ended, f"{len(job_ids)} jobs have ended")

    def wait_for_lapse(self, *job_ids: UUID) -> None:
        """Return once the leases of these jobs have run out, by the database's clock."""
        self.wait_for(lambda: self.app.database.run(proving.lapsed(job_ids)), f"{len(job_ids)} leases have run out")

    def journal(self, job_id: UUID) -> list[JournalEntry]:
        return self.app.database.run(views.journal(job_id))

    def refusals(self, job_id: UUID, *, token: int | None = None) -> list[tuple[str, str]]:
        """(verb, reason) of every refused write on record, or of those under one token."""
        entries = [entry for entry in self.journal(job_id) if entry.event == "stale_write_blocked"]
        of_token = [entry for entry in entries if token in (None, entry.fencing_token)]
        return [(entry.detail["verb"], entry.detail["reason"]) for entry in of_token]

    def note(self, event: str, **fields: Any) -> None:
        """Put something that the drill itself did into the trace, with the time of this machine, as actors do."""
        self.verdict.trace.append({"at": _now(), "event": event, **fields})

    def faults_are_over(self) -> None:
        """From now on every job has to end in time."""
        self._calm_at = self.app.database.run(holdings.time())

    def expect_sound(self, *, whole: bool = True, unjudged: str = "", **known: Any) -> None:
        """The last thing every drill asks for: the invariants, and that all clients saw agrees with what is there.

        `whole`: every job was made through a client. `unjudged`: why what they saw cannot agree. `known`: what else is
        known of the run, see `Limits`.
        """
        broken = [violation.invariant for violation in invariants.violations(self.app.database.run)]
        self.verdict.expect("invariants broken", broken, [])
        if unjudged:
            self.note("history_not_judged", why=unjudged)
            return
        # Actors are still at work. What they hear of from now on may have happened before we look, or after.
        looked_at = time.monotonic()
        final = Final.read(self._session, effects=self._effects)
        history = tape.read(sorted(self._tapes.iterdir()), until=looked_at)
        limits = Limits(
            whole=whole,
            effects_of=WITH_EFFECT,
            faults_stopped_at=self._calm_at,
            seconds_to_end=lambda _: SECONDS_TO_END,
            **known,
        )
        faults = [str(fault) for fault in check(history, final, limits)]
        claim = f"promises broken in the history of {len(history.operations):,} operations"
        self.verdict.holds(claim, faults, holds=bool(history.operations) and not faults)

    def _collect_trace(self) -> None:
        lines = [*self.verdict.trace, *(event for actor in self._actors for event in actor.events())]
        self.verdict.trace = sorted(lines, key=lambda line: str(line.get("at", "")))
        for line in self.verdict.trace:
            if line["event"] == "fault_took_effect" and line["action"] != "barrier":  # which only keeps the order
                self.verdict.took_effect(f"{line['action']} at {line['point']}")

    def _end_actors(self) -> None:
        for actor in self._actors:
            if actor.alive:
                with contextlib.suppress(ProcessLookupError):
                    actor.signal(signal.SIGCONT)
                    actor.signal(signal.SIGTERM)
        give_up = time.monotonic() + 10
        for actor in self._actors:
            try:
                actor.process.wait(max(0.1, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                actor.kill()


def _now() -> str:
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.now(UTC).isoformat(timespec="microseconds")


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {"event": "output", "text": line}
    return found if isinstance(found, dict) and "event" in found else {"event": "output", "text": line}

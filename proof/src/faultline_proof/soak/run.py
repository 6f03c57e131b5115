"""One soak from its first job to its judgement. Whatever it started is stopped when it ends, also by Ctrl-C."""

from __future__ import annotations

import contextlib
import random
import secrets
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from faultline.core.errors import DatabaseUnavailable, OutcomeUnknown, StatementTimeout
from faultline.store.database import Database
from faultline.store.install import migrate
from faultline_proof.reads import audit, holdings
from faultline_proof.soak import flows, mischief, schedules
from faultline_proof.soak.chart import Sample
from faultline_proof.soak.crew import Crew
from faultline_proof.soak.judge import judge
from faultline_proof.soak.limits import Looks
from faultline_proof.soak.producer import Producer
from faultline_proof.soak.report import Report
from faultline_proof.soak.servers import Pair, Single
from faultline_proof.soak.signals import Signals
from faultline_proof.soak.tasks import EFFECTS
from faultline_proof.soak.trouble import KINDS, PROMOTE, Trouble
from faultline_proof.tape import Recording
from faultline_proof.verdict import Check

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

DRAIN_SECONDS = 60.0
_ROUND_SECONDS = 60.0
_TICK_SECONDS = 0.05
_SAMPLE_SECONDS = 1.0
#: What our own questions meet, too: cut connections, cancelled statements, locked tables.
_OF_THE_MOMENT = (DatabaseUnavailable, OutcomeUnknown, StatementTimeout, psycopg.OperationalError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seconds: float = 600.0
    workers: int = 4
    seed: int = 0
    #: Jobs that are submitted each second, as far as the backlog allows.
    jobs_per_second: float = 400.0
    #: The kinds of faults that happen. A promotion needs a second server.
    faults: tuple[str, ...] = KINDS


@dataclass(frozen=True, slots=True)
class Glance:
    """How far it has come."""

    seconds: float
    of_seconds: float
    acknowledged: int
    unfinished: int
    faults: Counter[str]


class Soak:
    """`tell` is called with a `Glance` a few times a second."""

    def __init__(self, plan: Plan, tell: Callable[[Glance], None]) -> None:
        self.plan = plan
        self._tell = tell
        self._chance = random.Random(plan.seed)  # noqa: S311 - to be repeated, not to be secret
        self._stack = contextlib.ExitStack()
        self._samples: list[Sample] = []
        self._interrupted = False
        self._begun = self._ended = 0.0
        #: When the last fault was over, in the database's time.
        self._calm_at: float | None = None
        #: All schedules are paused, and none was behind.
        self._paused = False
        self._looks = Looks()
        self._tapes: Path
        self._database: Database
        self._crew: Crew
        self._producer: Producer
        self._signals: Signals
        self._trouble: Trouble

    def run(self) -> Report:
        with _Undisturbed() as undisturbed, self._stack:
            self._set_up()
            drained: float | None = None
            try:
                self._go_on()
                drained = self._drain()
            except KeyboardInterrupt:
                self._interrupted = True
            undisturbed.from_now_on()
            self._producer.stop()
            self._signals.stop()
            self._crew.stop()
            return self._report(drained)

    def _set_up(self) -> None:
        folder = Path(tempfile.gettempdir()) / f"faultline-soak-{secrets.token_hex(6)}"
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        servers = (Pair if PROMOTE in self.plan.faults else Single)(folder)
        self._stack.callback(servers.close)
        with psycopg.connect(servers.dsn, autocommit=True) as connection:
            migrate.migrate(connection)
            connection.execute(EFFECTS)
            connection.execute(flows.MARKS)
            connection.execute(mischief.NOBODY_MADE.encode())
        self._database = Database(servers.dsn)
        self._stack.callback(self._database.close)
        self._tapes = folder / "tapes"
        self._tapes.mkdir()
        self._crew = Crew(servers.dsn, self.plan.workers, folder, self._tapes)
        self._stack.callback(self._crew.stop)
        recording = self._stack.enter_context(Recording.to(self._tapes / "producer", "producer"))
        chance = random.Random(self._chance.random())  # noqa: S311
        faults = self.plan.faults
        self._producer = Producer(servers.dsn, recording, chance, self.plan.jobs_per_second, faults)
        self._trouble = Trouble(self._database, servers, self._crew, self._chance, kinds=faults, seconds=self.plan.seconds)
        self._begun = time.monotonic()
        self._producer.start()
        self._stack.callback(self._producer.stop)
        recording = self._stack.enter_context(Recording.to(self._tapes / "signals", "signals"))
        self._signals = Signals(servers.dsn, recording)
        self._signals.start()
        self._stack.callback(self._signals.stop)

    def _go_on(self) -> None:
        """Trouble until the time is over, and until every kind of it took effect."""
        end = self._begun + self.plan.seconds
        while time.monotonic() < end or (not self._trouble.round_done and time.monotonic() < end + _ROUND_SECONDS):
            self._turn(self._trouble.tick)
        while not self._trouble.over:
            self._turn(lambda: None)
        self._ended = time.monotonic()
        self._producer.stop()

    def _drain(self) -> float | None:
        """The faults are over: everything must come to its end. How long that took; None if it did not."""
        self._producer.unfinished = 1  # until the database says otherwise: what was read before is out of date
        while time.monotonic() < self._ended + DRAIN_SECONDS:
            self._turn(self._calm_down)
            if not self._producer.unfinished and not self._crew.frozen and self._paused:
                return time.monotonic() - self._ended
        return None

    def _calm_down(self) -> None:
        if self._calm_at is None and not self._crew.frozen:
            self._calm_at = self._database.run(holdings.time())
        if self._calm_at is not None and not self._paused:
            self._paused = schedules.pause(self._database)

    def _turn(self, act: Callable[[], None]) -> None:
        self._crew.tick()
        # Its own connection is cut as often as everybody else's, and the server is away now and then.
        with contextlib.suppress(*_OF_THE_MOMENT):
            act()
            self._trouble.look_for_recovered()
            self._looks.look(self._database)
            self._producer.unfinished = self._database.run(audit.unfinished())
        for error in (self._producer.error, self._signals.error):
            if error is not None:
                raise error
        now = time.monotonic() - self._begun
        acknowledged = self._producer.record.acknowledged
        if not self._samples or now >= self._samples[-1].at + _SAMPLE_SECONDS:
            self._samples.append(Sample(now, acknowledged, max(0, acknowledged - self._producer.unfinished)))
        self._tell(Glance(now, self.plan.seconds, acknowledged, self._producer.unfinished, self._trouble.took_effect))
        time.sleep(_TICK_SECONDS)

    def _report(self, drained: float | None) -> Report:
        record, trouble = self._producer.record, self._trouble
        over, tapes = drained is not None, sorted(self._tapes.iterdir())
        calm_at = self._calm_at
        judged = judge(
            self._database,
            tapes,
            record,
            over=over,
            calm_at=calm_at,
            ticked_until=calm_at if self._paused else None,
            looks=self._looks,
        )
        checks = judged.checks
        if not self._interrupted:
            checks.append(Check(f"all drained within {DRAIN_SECONDS:g} s", f"{drained:.1f} s" if over else "no", over))
            for kind in (kind for kind in mischief.KINDS if kind in self.plan.faults):
                tasks = mischief.KINDS[kind]
                trouble.took_effect[kind] = self._database.run(audit.ended_of([task.__name__ for task in tasks]))
            missing = [kind for kind in self.plan.faults if not trouble.took_effect[kind]]
            checks.append(Check("every kind of fault took effect", f"not: {missing}" if missing else "yes", not missing))
        return Report(
            seconds=(self._ended or time.monotonic()) - self._begun,
            workers=self.plan.workers,
            seed=self.plan.seed,
            interrupted=self._interrupted,
            acknowledged=judged.acknowledged,
            operations=judged.operations,
            judged_seconds=judged.seconds,
            drained_seconds=drained,
            faults=trouble.took_effect,
            moments=trouble.moments,
            refusals=self._database.run(audit.refusals()),
            reaps=self._database.run(audit.reaps()),
            recoveries=trouble.recoveries,
            outages=trouble.outages,
            unknown=record.unknown,
            found=record.found,
            absent=len(record.absent),
            flows=judged.flows,
            ticks=judged.ticks,
            looks=self._looks.number,
            most_at_once=self._looks.most,
            surprises=self._crew.surprises,
            samples=self._samples,
            checks=checks,
        )


class _Undisturbed(contextlib.AbstractContextManager["_Undisturbed"]):
    """A second Ctrl-C must not leave behind what the first one was to stop. That takes seconds at most."""

    def __init__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def from_now_on(self) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

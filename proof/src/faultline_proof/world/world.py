"""One seed, one history: set the world up, let it run, and look at what is left."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from faultline.store.database import run_on
from faultline.store.reads import invariants
from faultline.store.testing import clocks_say
from faultline_proof.checker import check
from faultline_proof.faults import Limits
from faultline_proof.history import Final
from faultline_proof.world import flows, limits, story
from faultline_proof.world import storm as storms
from faultline_proof.world.hosts import SimulatedHost
from faultline_proof.world.loop import VirtualLoop
from faultline_proof.world.server import Server, Sessions
from faultline_proof.world.testimony import PLACES, history_of
from faultline_proof.world.weather import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from faultline_proof.history import Operation

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
WORKERS = 3
#: After these a host may have lost its leases.
_LOSSES = frozenset({"crash", "freeze", "cut off"})
#: For so long at most the server refuses connections.
_TURNED_AWAY_SECONDS_MAX = 10.0
#: A worker whose heartbeat was refused a connection is heard over others, if it has some left, they are not slow and its
#: event loop is free to use them. This is how long a silence makes it look dead, and by when it has to use them.
_SILENT_SECONDS, _STANDS_IN_SECONDS = 3.0, 1.5
#: After the faults stop, everything must end within a lease, a sweep and its backoffs, over and over for each attempt.
CALM_SECONDS_MAX = 90.0
_TABLES = (
    "effects",
    "marks",
    *(
        f"faultline.{name}"
        for name in (
            "open_jobs", "ledger", "journal", "steps", "keys", "workers", "tallies", "samples",
            "flows", "calls", "edges", "signals", "nudges", "sweeps", "streams", "subscriptions",
            "schedules", "ticks", "unique_keys", "queues", "limits", "limited_queues", "groups", "group_events", "budgets",
        )
    ),
)  # fmt: skip
#: Numbers that statements of flows name. They begin anew with each seed, which is then the same history again.
_NUMBERED = ("calls", "signals", "nudges", "sweeps", "schedules")
#: Production bodies never read a setting; these do.
CLOCKS = clocks_say("current_setting('faultline_world.now')::timestamptz") + (
    "create or replace function faultline.server_run() returns text language sql stable"
    " return current_setting('faultline_world.run');"
)
#: Ids that the database makes, for jobs of schedules: by its time, and counted. Not by a sequence: a statement that was
#: undone would have used up a number.
_IDS = """
create table world_ids (last bigint);
insert into world_ids values (0);
create or replace function faultline.new_id(ordinal bigint) returns uuid language plpgsql volatile as $$
declare
  number bigint;
begin
  update public.world_ids set last = last + 1 returning last into number;
  return (
    lpad(to_hex((extract(epoch from faultline.clock()) * 1000)::bigint), 12, '0') || '70008000'
    || lpad(to_hex(number), 12, '0')
  )::uuid;
end
$$;
"""


#: Kept for as long as the process lives: Python would otherwise let dead hosts clean up after themselves.
_graves: list[object] = []


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed. `broken` says which promises did not hold; the history is kept only then."""

    seed: int
    digest: str
    broken: list[str]
    faults: dict[str, int]
    jobs: int
    statements: int
    refused: int
    seconds: float
    #: How many jobs of each task succeeded. A task that never does shows nothing.
    succeeded: dict[str, int]
    history: list[str] = field(default_factory=list)


def prepare(dsn: str, mutant: str = "") -> None:
    """Give a scratch database the world's clock and a table for effects."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table effects (job_id uuid, token bigint)")
        connection.execute(flows.MARKS)
        connection.execute((CLOCKS + _IDS).encode())
        if mutant:
            connection.execute(mutant.encode())


class Stage:
    """A prepared database on which one seed is played after the other. Before each of them it is emptied."""

    def __init__(self, dsn: str, faults: Sequence[str] = storms.DEFAULT) -> None:
        self._faults = faults
        # As a replica: the guards would refuse to have jobs thrown away.
        self._control = psycopg.connect(dsn, autocommit=True, options="-c session_replication_role=replica")
        self._sessions = Sessions(dsn)
        self._control.execute(f"truncate {', '.join(_TABLES)}".encode())

    def play(self, seed: int, *, keep_history: bool = False) -> Outcome:
        control = self._control
        self._empty()
        loop = VirtualLoop()
        asyncio.set_event_loop(loop)
        world = _World(loop, self._sessions, seed, self._faults)
        _graves.append(world)
        try:
            loop.run_until_complete(world.play(control))
        finally:
            world.server.cut()
        broken = world.judge(control)
        history = [str(line) for line in world.record.lines]
        digest = hashlib.sha256("\n".join([*history, *world.remains(control)]).encode()).hexdigest()[:16]
        return Outcome(
            seed=seed,
            digest=digest,
            broken=broken,
            faults=dict(world.faults),
            jobs=len(world.told.acknowledged),
            statements=len(world.record.lines),
            refused=int(_value(control, "select count(*) from faultline.journal where event = 'stale_write_blocked'")),
            seconds=loop.time(),
            succeeded=dict(
                control.execute("select task, count(*)::int from faultline.ledger group by 1 order by 1").fetchall()
            ),
            history=history if broken or keep_history else [],
        )

    def _empty(self) -> None:
        """By deleting: truncated tables would be new ones, of which every session has to learn again."""
        with self._control.transaction():
            for table in _TABLES:
                self._control.execute(f"delete from {table}".encode())
            for table in _NUMBERED:
                self._control.execute(f"select setval('faultline.{table}_id_seq', 1, false)".encode())
            self._control.execute("update world_ids set last = 0")
            self._control.execute("update faultline.sampling set sampled_at = '-infinity'")
            self._control.execute("update faultline.settings set server_run = '', server_run_noticed_at = '-infinity'")


class _World:
    def __init__(self, loop: VirtualLoop, sessions: Sessions, seed: int, kinds: Sequence[str]) -> None:
        chance = random.Random(seed)  # noqa: S311 - chance that can be repeated
        self._loop = loop
        self._chance = chance
        self._kinds = kinds
        self.server = Server(sessions, self._clock, random.Random(chance.random()))  # noqa: S311 - likewise
        self.record = Record(loop.time)
        plays = frozenset(part for part in storms.PARTS if part in kinds and chance.random() < 0.5)  # noqa: PLR2004 - a coin
        self.told = story.Told(plays=plays)
        self.faults: Counter[str] = Counter()
        self._calm_at = 0.0
        self._workers = [self._host(f"worker{n}") for n in range(WORKERS)]
        self._client = self._host("client")

    async def play(self, control: psycopg.Connection) -> None:
        for number, host in enumerate(self._workers):
            chance = random.Random(self._chance.random())  # noqa: S311 - likewise
            host.live(story.worker(chance, self.told, knows_all=number == 0))
        chance = random.Random(self._chance.random())  # noqa: S311 - likewise
        kinds = [kind for kind in self._kinds if kind not in storms.PARTS or kind in self.told.plays]
        self._client.live(story.client(self.told, chance, story.jobs_with(kinds)))
        storm = storms.Storm(self._workers, self.server, self.record, self._chance, lambda: list(self.told.acknowledged))
        await storm.blow(self._kinds, self.faults)
        self.server.up = True
        for host in (*self._workers, self._client):
            host.weather.calm = True
        self.faults["lost messages"] = sum(host.weather.losses for host in (*self._workers, self._client))
        for app in self.told.apps:
            if "rare" not in app.tasks:
                story.deploy(app)
        self.record.note("world", "calm")
        self._calm_at = self._loop.time()
        give_up = self._loop.time() + CALM_SECONDS_MAX
        while self._loop.time() < give_up and not (self.told.done and self._all_ended(control)):  # noqa: ASYNC110
            await asyncio.sleep(0.5)

    def judge(self, control: psycopg.Connection) -> list[str]:
        """Compare what the clients were told, and what reached the database, with what it holds."""
        control.execute("select set_config('faultline_world.now', %s, false)", (self._clock(),))
        final = Final.read(control, effects="select job_id, token from effects")
        ticks = limits.SCHEDULES in self.told.plays
        known = Limits(
            effects_of=story.WITH_EFFECT,
            faults_stopped_at=self._said_at(self._calm_at).timestamp(),
            seconds_to_end=lambda _: CALM_SECONDS_MAX,
            own_failures=(lambda job: self.told.failures[job.job_id]) if storms.ATTEMPTS_JUDGED in self._kinds else None,
            was_lost=self._was_lost,
            seconds_of=self._server_seconds,
            ticked=limits.TICKED,
            every=limits.EVERY if ticks else {},
            catch_up=limits.CATCH_UP,
            overlap=limits.OVERLAP,
            ticked_until=self._said_at(self._loop.time()).timestamp(),
        )
        return [*self._told_wrong(control), *map(str, check(history_of(self.record.lines), final, known))]

    def _server_seconds(self, at: float) -> float:
        """By the server's clock, which alone says how much of a rate has come in."""
        line = int(at // PLACES)
        return self.record.lines[line].at + self.server.ahead_seconds(line)

    def _was_lost(self, grant: Operation, reap: Operation | None) -> bool:
        """Whether something happened to the host of a lease that may cost it the lease. Times are places in the record."""
        until = len(self.record.lines) if reap is None else int(reap.ended_at // PLACES)
        begun = int(grant.invoked_at // PLACES)
        lines = self.record.lines[begun:until]
        if any(line.host == grant.process and line.verb in _LOSSES for line in lines):
            return True
        # Also what may have been going on when the lease was granted.
        since = self.record.lines[begun].at - _TURNED_AWAY_SECONDS_MAX
        told = [line for line in self.record.lines[:until] if line.at >= since]
        at = self._loop.time() if reap is None else self.record.lines[until].at
        if any(line.host == grant.process and line.verb == "slow" for line in told) or self._was_blocked(grant.process, at):
            heard = False
        else:
            answered = self.record.answered_at[grant.process]
            heard = any(at - _SILENT_SECONDS <= when <= at - _STANDS_IN_SECONDS for when in answered)
        return not heard and any(line.verb == storms.TURNS_AWAY for line in told)

    def _was_blocked(self, host: str, at: float) -> bool:
        """Whether its event loop could not stand in for the heartbeat: it was blocked meanwhile."""
        loop = [line for line in self.record.lines if line.host == host and line.verb in ("loop blocked", "loop free")]
        before = [line for line in loop if line.at <= at]
        return bool(before) and (before[-1].verb == "loop blocked" or before[-1].at > at - _STANDS_IN_SECONDS)

    def _told_wrong(self, control: psycopg.Connection) -> list[str]:
        broken = [f"invariant {found.invariant}" for found in self._violations(control)]
        states: dict[UUID, str] = dict(control.execute("select id, state from faultline.jobs").fetchall())
        effects = Counter(job_id for (job_id,) in control.execute("select job_id from effects").fetchall())
        ledger = Counter(job_id for (job_id,) in control.execute("select job_id from faultline.ledger").fetchall())
        broken += self._judged_too_early(control)
        if not self.told.done:
            broken.append("the client could not submit everything")
        for job_id, task in self.told.acknowledged.items():
            broken += self._judge_job(job_id, task, states.get(job_id), effects[job_id], ledger[job_id])
        submitted = _value(
            control,
            "select count(*) from (select id, flow_id from faultline.open_jobs union all"
            " select job_id, flow_id from faultline.ledger) j where coalesce(flow_id, id) = id"
            " and not exists (select from faultline.ticks t where t.job_id = j.id)",
        )
        if submitted > story.JOBS:
            broken.append(f"{submitted} jobs were made of {story.JOBS} submissions")
        return broken + self._flows_wrong(control)

    def _flows_wrong(self, control: psycopg.Connection) -> list[str]:
        twice = control.execute("select job_id from marks group by 1 having count(*) > 1").fetchall()
        broken = [f"job {job_id} has run its atomic step twice" for (job_id,) in twice]
        done = "select job_id, task, (args ->> 'n')::int, result from faultline.ledger where task = any (%s)"
        for job_id, task, n, result in control.execute(done, (list(flows.TASKS),)).fetchall():
            if result != flows.expected(task, n):
                broken.append(f"job {job_id} ({task}) has the result {result}, not {flows.expected(task, n)}")
        return broken

    def _judged_too_early(self, control: psycopg.Connection) -> list[str]:
        """A worker lost its session and its lock with everybody else's, and was declared dead before it could be back."""
        found = control.execute(
            "select j.owner, j.at from faultline.journal j,"
            " lateral (select max(e) as ended_at from unnest(%s::timestamptz[]) e where e <= j.at) s"
            " where j.event = 'worker_lost' and (j.detail ->> 'last_heartbeat')::timestamptz <= s.ended_at"
            " and j.at < s.ended_at + interval '30 seconds'",
            (self.server.ended_at,),
        ).fetchall()
        return [f"worker {owner} was declared dead at {at}, before it could be back" for owner, at in found]

    def _judge_job(self, job_id: UUID, task: str, state: str | None, effects: int, entries: int) -> list[str]:
        wrong = []
        if state is None:
            wrong.append("was acknowledged and is lost")
        elif state not in story.ENDED:
            wrong.append(f"is still {state}")
        if job_id in self.told.cancelled and state != "cancelled":
            wrong.append(f"was said to be cancelled and is {state}")
        if entries != (state == "succeeded"):
            wrong.append(f"is {state} and stands {entries} times in the ledger")
        if effects != (task in story.WITH_EFFECT and state == "succeeded"):
            wrong.append(f"is {state} and has {effects} effects")
        if task in story.DOOMED and state not in ("failed", "cancelled"):
            wrong.append(f"fails by itself and is {state}")
        return [f"job {job_id} ({task}) {what}" for what in wrong]

    def remains(self, control: psycopg.Connection) -> list[str]:
        """What the database holds, as text that is the same when everything is."""
        jobs = "select id, state, fencing_token, attempt, result::text from faultline.jobs order by id"
        # Without the errors: they tell where the code lies.
        told = "job_id, event, fencing_token, at, (detail - 'error')::text"
        journal = f"select {told} from faultline.journal where job_id notnull order by id"
        return [str(row) for query in (jobs, journal) for row in control.execute(query.encode()).fetchall()]

    def _host(self, name: str) -> SimulatedHost:
        chance = random.Random(self._chance.random())  # noqa: S311 - likewise
        return SimulatedHost(name, self._loop, self.server, self.record, chance)

    def _clock(self) -> str:
        return self._said_at(self._loop.time()).isoformat()

    def _said_at(self, seconds: float) -> datetime:
        """What the server's clock says then, as far as it was set until now."""
        return EPOCH + timedelta(seconds=seconds + self.server.ahead_seconds())

    def _all_ended(self, control: psycopg.Connection) -> bool:
        if _value(control, "select exists (select from faultline.open_jobs where state in ('queued', 'running'))"):
            return False
        if limits.SCHEDULES not in self.told.plays:
            return True
        ticking = f"select count(*) from faultline.schedules where next_at > '{self._clock()}'"
        return bool(_value(control, ticking) == len(limits.EVERY))

    def _violations(self, control: psycopg.Connection) -> list[Any]:
        return invariants.violations(
            lambda statement: run_on(control, statement), without=("times_come_from_the_server_clock",)
        )


def _value(connection: psycopg.Connection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None

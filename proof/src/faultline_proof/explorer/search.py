"""Go through every schedule of every scenario, depth first, and stop at the first in which a rule is broken."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import psycopg

from faultline.core.errors import ConfigError
from faultline.core.model import JobState
from faultline.store import scratch, verbs
from faultline.store.database import run_on
from faultline.store.reads import invariants, views
from faultline_proof.explorer import steps, stops
from faultline_proof.explorer.flows import FLOW_SCENARIOS, judge
from faultline_proof.explorer.limits import LIMIT_SCENARIOS
from faultline_proof.explorer.orders import DrawnOrders, Orders
from faultline_proof.explorer.players import Player, Sessions
from faultline_proof.explorer.programs import Scene
from faultline_proof.explorer.rules import Referee, Wrong
from faultline_proof.explorer.scenarios import SCENARIOS
from faultline_proof.explorer.story import Broken, Exploration, Explored, Line
from faultline_proof.reads import witness

#: So many orders are tried of a scenario that is judged by its end.
MOST = 400

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from faultline_proof.explorer.rules import Expected
    from faultline_proof.explorer.scenarios import Scenario


def explore(
    server_dsn: str,
    *,
    only: str | None = None,
    mutant: str = "",
    most: int = MOST,
    tell: Callable[[str], None] = print,
) -> Exploration:
    """Explore every scenario, or only one, in a scratch database of that server. Stops at the first broken schedule.

    `mutant` is SQL that takes a guard out of the protocol, to see whether the explorer notices. Of a scenario that is
    judged by its end, at most `most` orders are tried.
    """
    known = SCENARIOS | FLOW_SCENARIOS | LIMIT_SCENARIOS
    if only is not None and only not in known:
        raise ConfigError(f"there is no scenario named {only}; there are: {', '.join(known)}")
    exploration = Exploration()
    for group in (SCENARIOS, FLOW_SCENARIOS, LIMIT_SCENARIOS):
        chosen = [one for name, one in group.items() if only in (None, name)]
        if chosen and exploration.broken is None:
            _explore(server_dsn, chosen, exploration, mutant, most, tell)
    return exploration


def _explore(
    server_dsn: str,
    scenarios: Sequence[Scenario],
    exploration: Exploration,
    mutant: str,
    most: int,
    tell: Callable[[str], None],
) -> None:
    with (
        scratch.database(server_dsn) as dsn,
        psycopg.connect(dsn, autocommit=True) as watcher,
        Sessions(dsn, watcher) as sessions,
    ):
        watcher.execute(mutant.encode())
        watcher.execute(steps.GROUND.encode())
        stopped_in = {function for one in scenarios for functions in one.stops.values() for function in functions}
        if stopped_in:
            stops.put_into(watcher, stopped_in)
        explorer = _Explorer(sessions, watcher)
        for scenario in scenarios:
            seen = Explored(scenario.name)
            exploration.explored.append(seen)
            orders = Orders() if scenario.judge is None else DrawnOrders(most)
            exploration.broken = explorer.try_every_order(scenario, seen, orders)
            tell(str(exploration.broken or seen))
            if exploration.broken is not None:
                break


class _Explorer:
    def __init__(self, sessions: Sessions, watcher: psycopg.Connection) -> None:
        self._sessions = sessions
        self._watcher = watcher
        self._scenes = 0
        self._jobs = 0

    def try_every_order(self, scenario: Scenario, seen: Explored, orders: Orders | DrawnOrders) -> Broken | None:
        begun = time.monotonic()
        broken: Broken | None = None
        while broken is None and orders.another():
            seen.schedules += 1
            self._scenes += 1
            floor = run_on(self._watcher, witness.token_floor())
            broken = self._try(Play(scenario, Scene(self._scenes, floor), seen), orders)
        seen.seconds = time.monotonic() - begun
        seen.drawn = broken is None and orders.drawn
        return broken or self._look_over(scenario)

    def _try(self, play: Play, orders: Orders | DrawnOrders) -> Broken | None:
        try:
            play.perform(self._sessions, orders)
            if play.scenario.judge is None:
                self._compare(play.referee.jobs)
            else:
                judge.end(self._watcher, play.scenario, play.scene)
        except Wrong as wrong:
            return Broken(play.scenario.name, tuple(play.schedule), str(wrong), tuple(play.lines))
        return None

    def _compare(self, jobs: dict[UUID, Expected]) -> None:
        """What stands in the database must be what the rules say: no more, no less."""
        ids = list(jobs)
        found = run_on(self._watcher, witness.testimony(ids))
        effects = self._watcher.execute("select job_id, token from effects where job_id = any(%s)", (ids,)).fetchall()
        for job_id, job in jobs.items():
            there = found.get(job_id, witness.Found())
            written = Counter(token for written_by, token in effects if written_by == job_id)
            _same("the job", there.rows, [(job.state.value, job.token, job.owner, job.attempt)])
            _same("its journal", there.journal.elements(), job.journal.elements())
            _same("its steps", there.steps.elements(), job.steps.elements())
            _same("its effects", written.elements(), job.effects.elements())
            if written.total() > 1:
                raise Wrong(f"in the end its effect exists {written.total()} times")
            if job.state is JobState.RUNNING:
                # No lease may be left for the reapers of later schedules.
                run_on(self._watcher, verbs.cancel(job_id))
        self._jobs += len(jobs)

    def _look_over(self, scenario: Scenario) -> Broken | None:
        """Ask what is asked of every database, and whether there are jobs that nobody was told of."""
        violations = invariants.violations(
            lambda invariant: run_on(self._watcher, invariant), without=("times_come_from_the_server_clock",)
        )
        broken = [f"the invariant {one.invariant} does not hold: {one.rows}" for one in violations]
        jobs = run_on(self._watcher, views.counts()).total()
        if jobs != self._jobs:
            broken.append(f"there are {jobs:,} jobs in the database, and {self._jobs:,} were enqueued")
        return Broken(scenario.name, (), "; ".join(broken), ()) if broken else None


class Play:
    """One schedule of a scenario, from the set-up to its last answer."""

    def __init__(self, scenario: Scenario, scene: Scene, seen: Explored) -> None:
        self.scenario = scenario
        self.referee = Referee(floor=scene.floor, may_deadlock=scenario.may_deadlock, by_answers=scenario.judge is None)
        self.schedule: list[str] = []
        self.lines: list[Line] = []
        self.scene = scene
        self._seen = seen
        #: Who waits, and for whom.
        self._waiting: dict[str, list[str]] = {}

    def perform(self, sessions: Sessions, orders: Orders | DrawnOrders) -> None:
        opened = sessions.open(len(self.scenario.programs))
        for session in opened if sessions.may_stop else ():
            session.tell("reset stops.number")
        set_up = Player("set-up", opened[0], self.scenario.set_up(self.scene))
        while set_up.ready:
            self._turn(set_up, [set_up], sessions)
        players: dict[str, Player] = {}
        for number, (name, script) in enumerate(self.scenario.programs.items()):
            gate = sessions.gate(number) if name in self.scenario.stops else None
            if gate is not None:
                opened[number].tell(gate.settings(self.scenario.stops[name]))
            players[name] = Player(name, opened[number], script(self.scene), gate)
        while ready := [name for name, player in players.items() if player.ready]:
            name = orders.choose(len(self.schedule), ready)
            self.schedule.append(name)
            self._turn(players[name], list(players.values()), sessions)

    def _turn(self, player: Player, players: Sequence[Player], sessions: Sessions) -> None:
        waited, self._waiting = self._waiting, sessions.play_turn(player, players)
        if player.name in self._waiting:
            self._seen.lock_waits += 1
            *before, step = player.doing
            self.lines += [Line(player.name, str(one), steps.told(None)) for one in before]
            self.lines.append(Line(player.name, str(step), f"waits for {', '.join(self._waiting[player.name])}"))
            if not step.may_wait and not self.scenario.with_recover:
                raise Wrong(f"{player.name}'s {step.verb} waits for a lock, and should skip what is locked")
        answered = [player, *(one for one in players if one.name in waited)]
        for one in answered:
            if one.stop is not None:
                self.lines.append(Line(one.name, str(one.doing[-1]), f"stops in {one.stop}"))
        turns = [one.end_turn() for one in answered if one.name not in self._waiting and one.stop is None]
        for turn in turns:
            for deed in turn[-1:] if turn[0].who in waited else turn:
                self.lines.append(Line(deed.who, str(deed.step), steps.told(deed.answer)))
            self._seen.deadlocks += isinstance(turn[-1].answer, psycopg.errors.DeadlockDetected)
        self.referee.hear(turns, list(self._waiting))


def _same(place: str, found: Iterable[object], wanted: Iterable[object]) -> None:
    is_there, should_be = (" and ".join(sorted(map(str, things))) or "nothing" for things in (found, wanted))
    if is_there != should_be:
        raise Wrong(f"in the end {place} should be {should_be}, and is {is_there}")

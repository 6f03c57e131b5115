"""What the explorer plays: a few programs beside each other, each on a database session of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faultline.core.ids import Ids
from faultline_proof.explorer import programs as does
from faultline_proof.explorer import steps
from faultline_proof.explorer.steps import LEASES_RUN_OUT

if TYPE_CHECKING:
    from faultline_proof.explorer.programs import Program, Scene, Script

#: Asks the database: a query and its parameters.
Ask = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    story: str
    set_up: Script
    programs: dict[str, Script]
    #: `recover` locks the whole table: every verb may have to wait for it, or it for them.
    with_recover: bool = False
    #: Whether the programs take locks in an order that no protocol could save from a deadlock.
    may_deadlock: bool = False
    #: The functions in whose middle a program stops, by program.
    stops: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: What is wrong in the end, in words. Where there is a judge, the rules of plain jobs are not asked.
    judge: Callable[[Scene, Ask], list[str]] | None = None


# Set-ups


def _nothing(_: Scene) -> Program:
    yield from ()


def _waiting(scene: Scene, names: tuple[str, ...] = ("first",), **fields: Any) -> Program:
    placed = yield steps.enqueue([scene.job(name, **fields) for name in names])
    scene.jobs = {name: place.job_id for name, place in zip(names, placed, strict=True)}


def _two_waiting(scene: Scene) -> Program:
    yield from _waiting(scene, ("first", "second"))


def _running(scene: Scene, names: tuple[str, ...] = ("first",), **fields: Any) -> Program:
    yield from _waiting(scene, names, **fields)
    scene.leases = yield steps.claim(scene.queue)


def _two_running(scene: Scene) -> Program:
    yield from _running(scene, ("first", "second"))


def _running_for_the_last_time(scene: Scene) -> Program:
    yield from _running(scene, max_attempts=1)


def _running_under_a_known_id(scene: Scene) -> Program:
    yield from _running(scene, id=Ids().new())


def _expired(scene: Scene) -> Program:
    yield from _running(scene)
    yield LEASES_RUN_OUT


def _promoted(scene: Scene) -> Program:
    """Time passes too, so that the run of the server that is known before has been known for long."""
    yield LEASES_RUN_OUT
    yield from _running(scene)
    yield steps.all_sessions_end(scene.lease)


def _cancelled(scene: Scene) -> Program:
    yield from _running(scene)
    yield steps.cancel("first", scene.jobs["first"])


def _failed_long_ago(scene: Scene) -> Program:
    """Its first life has seen three tokens."""
    yield from _running_under_a_known_id(scene)
    for _ in range(2):
        yield steps.release(scene.lease)
        scene.leases = yield steps.claim(scene.queue)
    yield steps.fail(scene.lease, "fail")
    yield steps.end_long_ago("first", scene.jobs["first"])


def _one_waits_and_one_runs(scene: Scene) -> Program:
    yield from _running(scene)
    yield steps.enqueue([scene.job("second")])


def _taken_over(scene: Scene) -> Program:
    """The first lease is stale, the second one good."""
    yield from _expired(scene)
    yield steps.reap()
    scene.leases += yield steps.claim(scene.queue)


# The scenarios


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "claim-claim",
            "three workers want one job; one of them changes its mind",
            _waiting,
            {"A": does.takes_in_a_transaction, "B": does.takes_and_rolls_back, "C": does.works},
        ),
        Scenario(
            "claim-claim-two-jobs",
            "two workers want two jobs while one of these is cancelled",
            _two_waiting,
            {"A": does.takes_in_a_transaction, "B": does.works, "operator": does.cancels},
        ),
        Scenario(
            "claim-reap",
            "an expired job is taken back by two reapers while two workers want it",
            _expired,
            {"reaper": does.reaps_in_a_transaction, "another": does.reaps, "B": does.works, "C": does.takes},
        ),
        Scenario(
            "complete-reap",
            "a worker completes at the moment its job is taken back and handed on",
            _running,
            {
                "A": does.completes_in_a_transaction,
                "time": does.time,
                "reaper": does.reaps_in_a_transaction,
                "B": does.works,
            },
        ),
        Scenario(
            "complete-reap-rolled-back",
            "the completion and the reap are both undone; the worker tries again",
            _expired,
            {"A": does.completes_and_rolls_back, "reaper": does.reaps_and_rolls_back, "A again": does.completes},
        ),
        Scenario(
            "renew-reap",
            "a heartbeat comes when the lease has run out, or is about to",
            _running,
            {"A": does.beats_and_completes, "time": does.time, "reaper": does.reaps_in_a_transaction, "B": does.works},
        ),
        Scenario(
            "renew-renew-reap",
            "two heartbeats of one worker, one of them slow to commit",
            _running,
            {"A": does.beats_in_a_transaction, "A's other": does.beats, "time": does.time, "reaper": does.reaps},
        ),
        Scenario(
            "promotion-reap",
            "a standby is promoted under a running job; two reapers notice that before its worker is back",
            _promoted,
            {
                "A": does.comes_back_and_completes,
                "reaper": does.notices_the_dead_in_a_transaction,
                "another": does.notices_the_dead,
                "B": does.takes,
            },
        ),
        Scenario(
            "fail-reap",
            "a worker reports a failure at the moment its job is taken back and handed on",
            _expired,
            {"A": does.fails, "reaper": does.reaps_in_a_transaction, "B": does.works},
        ),
        Scenario(
            "fail-for-good-reap",
            "a worker gives up at the moment its job is taken back and handed on",
            _expired,
            {"A": does.fails_for_good, "reaper": does.reaps_in_a_transaction, "B": does.works},
        ),
        Scenario(
            "release-reap",
            "a worker gives its job back, and completes it all the same",
            _expired,
            {"A": does.gives_back, "reaper": does.reaps, "B": does.works},
        ),
        Scenario(
            "mark-started-reap",
            "the last attempt is about to begin when its lease runs out",
            _running_for_the_last_time,
            {
                "A": does.starts_and_completes,
                "time": does.time,
                "reaper": does.notices_the_dead_in_a_transaction,
                "B": does.takes,
            },
        ),
        Scenario(
            "fence-reap",
            "an effect and its completion, while the job is taken back and handed on",
            _running,
            {"A": does.completes_with_an_effect, "time": does.time, "reaper": does.reaps_in_a_transaction, "B": does.works},
        ),
        Scenario(
            "fence-fence",
            "the holder and its successor both write their effect",
            _running,
            {
                "A": does.completes_with_an_effect,
                "reaper": does.reaps_when_the_leases_have_run_out,
                "B": does.works_with_an_effect,
            },
        ),
        Scenario(
            "fence-again",
            "the holder writes its effect twice, as after a lost answer, while an operator would rather cancel",
            _running,
            {"A": does.completes_with_an_effect, "A again": does.completes_with_an_effect, "operator": does.cancels},
        ),
        Scenario(
            "fence-wait-expiry",
            "a fence waits for somebody who in the end does nothing, and its lease runs out meanwhile",
            _running,
            {"A": does.writes_an_effect, "time": does.time, "operator": does.cancels_and_rolls_back},
        ),
        Scenario(
            "fence-renew",
            "a heartbeat comes while the job's own transaction holds the row",
            _running,
            {"A": does.completes_with_an_effect, "heart": does.beats, "reaper": does.reaps_when_the_leases_have_run_out},
        ),
        Scenario(
            "step-reap",
            "a step is remembered at the moment the job is taken back and handed on",
            _expired,
            {"A": does.remembers_and_completes, "reaper": does.reaps_in_a_transaction, "B": does.works_with_a_step},
        ),
        Scenario(
            "cancel-complete",
            "an operator cancels what a worker completes",
            _running,
            {"A": does.completes_in_a_transaction, "operator": does.cancels, "A again": does.completes},
        ),
        Scenario(
            "cancel-fence",
            "an operator cancels what writes its effect; another one does so at the same time",
            _running,
            {"A": does.completes_with_an_effect, "operator": does.cancels, "another": does.cancels},
        ),
        Scenario(
            "cancel-retry-complete",
            "a cancelled job gets a second life, and its first worker comes back",
            _running,
            {"A": does.completes_in_a_transaction, "operator": does.cancels_and_retries, "B": does.works},
        ),
        Scenario(
            "retry-retry",
            "two operators give one job another chance, and a worker is quick",
            _cancelled,
            {"operator": does.retries, "another": does.retries, "B": does.works},
        ),
        Scenario(
            "cancel-progress",
            "a job that shows its progress is cancelled",
            _running,
            {"A": does.shows_progress, "operator": does.cancels, "reaper": does.reaps_when_the_leases_have_run_out},
        ),
        Scenario(
            "complete-complete",
            "one completion is sent three times, as after lost answers",
            _running,
            {"A": does.completes_in_a_transaction, "A again": does.completes_and_rolls_back, "A once more": does.completes},
        ),
        Scenario(
            "complete-complete-stale",
            "the stale holder and its successor complete at the same time",
            _taken_over,
            {
                "A": does.completes_the_older,
                "B": does.completes_the_newer,
                "reaper": does.reaps_when_the_leases_have_run_out,
            },
        ),
        Scenario(
            "complete-batch",
            "two jobs are completed at once while one of them is cancelled and both are taken back",
            _two_running,
            {"A": does.completes, "operator": does.cancels, "reaper": does.reaps_when_the_leases_have_run_out},
        ),
        Scenario(
            "enqueue-key",
            "three submissions with one key; one of them is rolled back and sent again",
            _nothing,
            {"A": does.enqueues("key"), "B": does.enqueues("key"), "C": does.enqueues_and_rolls_back},
        ),
        Scenario(
            "enqueue-key-conflict",
            "one key, two meanings",
            _nothing,
            {"A": does.enqueues("key"), "B": does.enqueues("key", args='{"other": true}'), "C": does.enqueues("key")},
        ),
        Scenario(
            "enqueue-keys-crossed",
            "two submissions with the same keys in opposite order, and a third that holds up both in the middle",
            _nothing,
            {"A": does.enqueues("a", "m", "z"), "B": does.enqueues("z", "m", "a"), "C": does.enqueues("m")},
        ),
        Scenario(
            "enqueue-again-complete",
            "a submission is sent again while its job finishes",
            _running_under_a_known_id,
            {"A": does.completes_in_a_transaction, "producer": does.enqueues_the_same_id, "B": does.works},
        ),
        Scenario(
            "enqueue-again-prune",
            "an id is enqueued again while its first life is pruned; a worker is quick",
            _failed_long_ago,
            {"upkeep": does.prunes, "producer": does.enqueues_the_same_id, "B": does.works},
        ),
        Scenario(
            "enqueue-again-prune-rolled-back",
            "an id is enqueued again while its first life is pruned, which is undone and tried again",
            _failed_long_ago,
            {"upkeep": does.prunes_and_rolls_back, "producer": does.enqueues_the_same_id, "B": does.takes},
        ),
        Scenario(
            "enqueue-again-prune-recover",
            "an id is enqueued again while its first life is pruned and an operator recovers",
            _failed_long_ago,
            {"upkeep": does.prunes, "producer": does.enqueues_the_same_id, "operator": does.recovers},
            with_recover=True,
        ),
        Scenario(
            "claim-recover",
            "two workers claim while an operator recovers",
            _one_waits_and_one_runs,
            {"operator": does.recovers, "A": does.takes_in_a_transaction, "B": does.takes},
            with_recover=True,
        ),
        Scenario(
            "complete-recover",
            "a worker completes with an effect while an operator recovers, and another one changes his mind",
            _one_waits_and_one_runs,
            {"A": does.completes_with_an_effect, "operator": does.recovers, "another": does.recovers_and_rolls_back},
            with_recover=True,
        ),
        Scenario(
            "crossed-transactions",
            "two transactions take two jobs in opposite order",
            _two_running,
            {"A": does.fences_both, "operator": does.cancels_both_backwards},
            may_deadlock=True,
        ),
    )
}

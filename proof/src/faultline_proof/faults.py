"""What a run is judged by: the promises, the faults that break them, and what is known of the run beside its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from faultline_proof.history import Operation
    from faultline_proof.reads.holdings import JobHeld


class Rule(StrEnum):
    KEPT = "no acknowledged job is lost"
    ONCE = "a job succeeds at most once, and the ledger tells how"
    NEWEST_TOKEN = "an accepted write carries the newest token"  # noqa: S105 - a word of the protocol, no secret
    TOKENS_GROW = "tokens grow, and each is granted once"
    EFFECT_ONCE = "an effect written through the job's transaction exists exactly once"
    LEGAL = "a job changes its state in legal ways only"
    ONE_TRUTH = "what was answered stays true, and what was not has one truth"
    IN_TIME = "every job ends in time once the faults have stopped"
    WOKEN = "a waiting job goes on once what it waits for has happened"
    SIGNAL_ONCE = "an acknowledged signal is kept once, and received by one call at most"
    SIGNAL_ORDER = "the signals of one sender are received in the order in which they were sent"
    SPAWN_ONCE = "each child of a call exists exactly once"
    TREE_ENDS = "no child goes on after its parent has failed or was cancelled"
    SPARED = "only its task or the loss of its worker uses up an attempt of a job"
    LIMIT_KEPT = "no more jobs of a queue or group run at once than its limit says when the last of them is granted"
    RATE_KEPT = "no more jobs of a queue or group are granted in any time than its rate and burst allow"
    GROUP_ORDER = "in an ordered group, what comes later starts when what came before has ended for good"
    PERMIT_FREED = "a permit is held by a job that runs, and is free when that has ended"
    BUDGET_KEPT = "no more is taken from a budget in any time than its rate and burst allow"
    BUDGET_WHOLE = "what nobody has taken from a budget is in it"
    UNIQUE_ONE = "of a unique key, one job at most waits for its first run"
    UNIQUE_RUN = "a submission that is answered with a waiting job is followed by a run of it"
    TICK_ONCE = "every moment of a schedule is decided once, and makes one job at most"
    TICK_ALONE = "where overlaps are not allowed, a job of a schedule starts when the one before has ended for good"


@dataclass(frozen=True, slots=True)
class Fault:
    """A promise that was broken, and the operations by which it is known."""

    rule: Rule
    job_id: str
    story: str
    operations: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join((f"{self.rule.value}: job {self.job_id} {self.story}", *map(str, self.operations)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is known of a run beside its history."""

    #: The history holds every call of every client. Then what nobody asked for is a fault.
    whole: bool = True
    #: What has ended may have been pruned.
    pruned: bool = False
    #: The tasks whose jobs write one effect each, in the transaction that completes them.
    effects_of: frozenset[str] = frozenset()
    #: When the last fault was over, in the database's time. None: nobody asks how long a job takes.
    faults_stopped_at: float | None = None
    #: How long a job may take from then on, or from when it was due: its lease, a sweep, its backoff.
    seconds_to_end: Callable[[JobHeld], float] = lambda _: 60.0
    #: In how many attempts at most the task of a job failed by itself. None: nobody knows.
    own_failures: Callable[[JobHeld], int] | None = None
    #: Whether the worker that was granted a lease was lost (killed, frozen, cut off) before this reap took it back.
    was_lost: Callable[[Operation, Operation | None], bool] = lambda _, __: True
    #: When an operation was invoked or ended, in seconds of the database's clock, where the history has other times.
    seconds_of: Callable[[float], float] = lambda at: at
    #: Tasks whose jobs only schedules make, and the seconds between the moments of schedules by name.
    ticked: frozenset[str] = frozenset()
    every: Mapping[str, float] = field(default_factory=dict)
    #: What these schedules do about moments that came due while nobody looked: `all` or `latest`.
    catch_up: Mapping[str, str] = field(default_factory=dict)
    #: What these schedules do about a moment that comes while jobs of theirs are open: `skip` or `one`.
    overlap: Mapping[str, str] = field(default_factory=dict)
    #: Somebody has surely looked at all of them since then: no moment up to it is left. In the database's time.
    ticked_until: float | None = None

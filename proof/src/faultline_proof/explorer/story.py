"""What the explorer tells: how much it has tried, and the schedule that broke, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a story: who did what, and what came of it."""

    who: str
    step: str
    answer: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A schedule in which the database did what it must not do."""

    scenario: str
    #: Whose turn it was, turn by turn. Empty if only the whole database shows that something is wrong.
    schedule: tuple[str, ...]
    what: str
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        who = max((len(line.who) for line in self.lines), default=0)
        step = max((len(line.step) for line in self.lines), default=0)
        story = [f"  {line.who:{who}}  {line.step:{step}}  {line.answer}" for line in self.lines]
        return "\n".join([f"{self.scenario}: BROKEN: {self.what}", *story])


@dataclass(slots=True)
class Explored:
    """What was seen in one scenario."""

    scenario: str
    schedules: int = 0
    lock_waits: int = 0
    deadlocks: int = 0
    seconds: float = 0.0
    #: There are more orders than were tried: these were drawn by chance.
    drawn: bool = False

    def __str__(self) -> str:
        return (
            f"{self.scenario}: {self.schedules:,} schedules{' drawn from more' if self.drawn else ''},"
            f" {self.lock_waits:,} lock waits, {self.deadlocks:,} deadlocks, {self.seconds:.1f} s"
        )


@dataclass(slots=True)
class Exploration:
    """What was seen in all of them."""

    explored: list[Explored] = field(default_factory=list)
    #: The first schedule that broke a rule; nothing was tried after it.
    broken: Broken | None = None

    def __str__(self) -> str:
        return (
            f"{len(self.explored)} scenarios, {self.schedules:,} schedules, {self.lock_waits:,} lock waits,"
            f" {self.deadlocks:,} deadlocks, {'a broken schedule' if self.broken else 'no broken schedule'}"
        )

    @property
    def schedules(self) -> int:
        return sum(one.schedules for one in self.explored)

    @property
    def lock_waits(self) -> int:
        return sum(one.lock_waits for one in self.explored)

    @property
    def deadlocks(self) -> int:
        return sum(one.deadlocks for one in self.explored)

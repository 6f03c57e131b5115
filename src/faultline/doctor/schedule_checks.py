"""What the doctor says about schedules: those that are overdue, fail, or are gone from the code. Uses no database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.doctor.checks import Finding, Level
from faultline.explain.formatting import span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from faultline.store.reads.schedules import ScheduleLine

#: Of each kind so many are named; the others are counted.
_NAMED_MAX = 5
_PAUSED_LONG_SECONDS = 86_400.0


def schedules(lines: Sequence[ScheduleLine]) -> Iterator[Finding]:
    """A schedule that stops is silent: nobody misses a report before somebody needs it."""
    found = 0
    for state, level in (("overdue", Level.WARNING), ("failing", Level.WARNING), ("orphaned", Level.WARNING)):
        those = [line for line in lines if line.state == state]
        found += len(those)
        for line in those[:_NAMED_MAX]:
            yield Finding("schedules", level, *_said(line))
        if len(those) > _NAMED_MAX:
            yield Finding(
                "schedules", level, f"and {len(those) - _NAMED_MAX:,} more are {state}", "list: faultline schedules"
            )
    for line in [line for line in lines if line.declared_otherwise][:_NAMED_MAX]:
        todo = "as it should be while you deploy; otherwise two programs have schedules of one name: rename one of them"
        yield Finding("schedules", Level.NOTE, f"{line.name}: {line.other_code}", todo)
    for line in lines:
        paused = 0.0 if line.paused_at is None else (line.clock - line.paused_at).total_seconds()
        if paused > _PAUSED_LONG_SECONDS:
            why = f": {line.reason}" if line.reason else ""
            fact = f"{line.name} has been paused for {span(paused)}{why}"
            yield Finding("schedules", Level.NOTE, fact, f"to resume it: faultline schedules resume {line.name}")
    if not found:
        active = sum(line.state == "active" for line in lines)
        fact = f"{active:,} active, none is overdue, fails or is orphaned" if lines else "none"
        yield Finding("schedules", Level.OK, fact)


def _said(line: ScheduleLine) -> tuple[str, str]:
    if line.state == "overdue":
        late = (line.clock - line.next_at).total_seconds() if line.next_at else 0.0
        whose = "that have it in their code" if line.from_code else "of any kind"
        todo = f"workers look once a second: are some alive {whose}? Look for scheduler errors in their log"
        return f"{line.name}: its tick has been due for {span(late)}", todo
    if line.state == "failing":
        since = span((line.clock - line.failed_at).total_seconds()) if line.failed_at else "?"
        error = " ".join((line.last_error or "").split())[:300]
        todo = f"correct its job or its rule; it is tried again by itself: faultline schedules show {line.name}"
        return f"{line.name}: its ticks cannot be decided about, {line.failures:,} times in {since}: {error}", todo
    todo = f"deploy workers that declare it (a new name needs was=), or: faultline schedules remove {line.name}"
    return f"{line.name}: no living worker has it in its code, so it does not tick", todo

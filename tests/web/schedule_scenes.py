"""Schedules with a past, for pages, commands and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline import operate
from faultline.core.model import Submission
from faultline.core.schedules import Policy, Rule, plan
from faultline.store.reads import schedules, views
from faultline.store.verbs import schedules as verbs

if TYPE_CHECKING:
    from faultline.store.reads.schedules import ScheduleLine
    from tests.driver import Clock, Driver


def made(
    db: Driver, name: str = "report", *, queue: str = "default", task: str = "t", args: str = "{}", **words: Any
) -> ScheduleLine:
    """A schedule that somebody has set. Without a rule, each hour."""
    of_policy = ("catch_up", "catch_up_seconds", "overlap", "jitter_seconds", "tick_arg")
    policy = {one: words.pop(one) for one in of_policy if one in words}
    rule = Rule(**(words or {"cron": "0 * * * *"}))
    db.run(operate.set_schedule(name, rule, Submission(task, args, queue=queue), Policy(**policy), by="ada", reason="asked"))
    ticked(db)
    return line(db, name)


def declared(
    db: Driver, name: str = "report", *, queue: str = "reports", worker: str = "w", digest: str = "", **options: Any
) -> ScheduleLine:
    """A schedule of the code of a worker, at nine each day."""
    spec = verbs.spec_text(Rule("0 9 * * *"), Submission("t", "{}", queue=queue, **options), Policy())
    db.run(verbs.declare_schedules(worker, [verbs.Declaration(name, digest or f"digest of {name}", None, spec)]))
    ticked(db)
    return line(db, name)


def line(db: Driver, name: str = "report") -> ScheduleLine:
    found = db.run(schedules.schedule(name))
    assert found is not None
    return found


def hours(db: Driver, clock: Clock, number: int) -> None:
    """Time passes, and a worker looks right after each full hour."""
    for _ in range(number):
        now = db.run(views.clock())
        clock.advance(3601 - now.minute * 60 - now.second)
        ticked(db)


def ticked(db: Driver) -> None:
    """What a worker does: decide about all ticks that are due."""
    for due in db.run(verbs.due_schedules([], 100)):
        rule = Rule.of(due.spec)
        first = due.next_at or rule.after(due.since)
        catch_up = due.spec.get("catch_up") or "latest"
        decided = plan(rule, first, due.clock, catch_up=catch_up, catch_up_seconds=86_400)
        db.run(verbs.tick_many([verbs.Decision(due, decided)]))

"""What a schedule may say: each tick makes a job of its own, and what could not tick is refused where it is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from faultline.store.reads import schedules as reads
from faultline_proof.probes.limit_stage import done, take
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions

_DAY = datetime(2026, 11, 1, tzinfo=UTC)
_SPEC: dict[str, Any] = {"every": 60, "job": {"task": "t"}}


def write(q: Session, **given: Any) -> None:
    q.execute("select faultline.set_schedule('s', %s::json)", json.dumps(_SPEC | given))


def template(text: str) -> list[dict[str, Any]]:
    return [{"text": text, "path": ["day"]}]


@probe("tick_job", "fill_template", "check_schedule", "backfill")
def a_group_and_a_key_of_the_tick_are_those_of_each_tick(sessions: Sessions) -> None:
    q = sessions.open()
    job = {"task": "t", "group": template("day-"), "unique": {"key": template("report:"), "then": "replace"}}
    write(q, job=job, tick_arg="day")
    days = [_DAY + timedelta(days=n) for n in range(3)]
    expect("enqueued", q.value("select faultline.backfill('s', %s)", days), 3)
    found = q.execute("select args ->> 'day', group_key, unique_key from faultline.open_jobs order by 1")
    texts = [day.isoformat() for day in days]
    expect("jobs", found, [(text, f"day-{text}", f"report:{text}") for text in texts])
    with refused(q, "FL005", "day is missing"):
        write(q, job=job)


@probe("check_schedule")
def what_no_worker_could_read_or_tick_is_no_schedule(sessions: Sessions) -> None:
    q = sessions.open()
    wrong: dict[str, dict[str, Any]] = {
        "not all numbers": {"every": "300"},
        "a time with a time zone": {"every": None, "at": "tomorrow+00"},
        "no name of one": {"every": None, "cron": "0 9 * * *", "tz": 5},
        "the name of an argument": {"tick_arg": 5},
        "are not a JSON object": {"job": {"task": "t", "args": 5}, "tick_arg": "day"},
        "leave the jitter out": {"job": {"task": "t", "unique": {"debounce": 5}}, "jitter_seconds": 1},
        "may expire before it runs": {"job": {"task": "t", "expires_seconds": 5}, "jitter_seconds": 5},
    }
    for why, given in wrong.items():
        with refused(q, "FL005", why, what=why):
            write(q, **given)
    for tz in ("localtime", "posixrules", "Factory", "posix/UTC", "right/UTC", "/etc/localtime"):
        with refused(q, "FL005", "whatever each host says", what=tz):
            write(q, every=None, cron="0 9 * * *", tz=tz)
    expect("schedules", q.value("select count(*) from faultline.schedules"), 0)
    write(q, job={"task": "t", "expires_seconds": 5}, jitter_seconds=4)


def declare(q: Session, *declared: tuple[str, str, str | list[str] | None], worker: str = "new") -> dict[str, str]:
    """A worker with this code declares: the name, the digest, and the name before. Gives what became of each."""
    q.heartbeat(worker)
    text = json.dumps([{"name": name, "digest": digest, "was": was, "spec": _SPEC} for name, digest, was in declared])
    return dict(q.execute("select * from faultline.declare_schedules(%s, %s::json)", worker, text))


@probe("declare_schedules", "declarations_in_order", "find_declared")
def a_name_that_was_given_up_may_be_used_again(sessions: Sessions) -> None:
    q = sessions.open()
    # By their names, the new schedule comes before the renamed one or after it.
    for old, new in (("report", "daily"), ("daily", "report")):
        declare(q, (old, "d1", None), worker="old")
        (before,) = q.execute("select id from faultline.schedules")
        code = ((new, "d2", old), (old, "d3", None))
        expect("beside the old code", declare(q, *code), {new: "waiting", old: "waiting"})
        sessions.hand.execute("delete from faultline.workers where id = 'old'")
        expect("after it", declare(q, *code), {new: "taken", old: "made"})
        expect("the history", q.value("select id from faultline.schedules where name = %s", new), before[0])
        expect("again", declare(q, *code), {new: "known", old: "known"})
        # One alone, as a worker asks for what is not in force.
        sessions.hand.execute("delete from faultline.schedules where name = %s", new)
        expect("the renamed one alone", declare(q, code[0]), {new: "made"})
        sessions.hand.execute("delete from faultline.schedules where name = %s", old)
        expect("the old name alone", declare(q, code[1]), {old: "made"})
        sessions.hand.execute("delete from faultline.schedules")
        sessions.hand.execute("delete from faultline.workers")


def _ids(q: Session) -> dict[str, int]:
    return dict(q.execute("select name, id from faultline.schedules"))


@probe("declare_schedules", "has_moved", "declarations_in_order")
def names_that_are_passed_on_in_a_row_take_their_histories_along(sessions: Sessions) -> None:
    q = sessions.open()
    # By their names, the one whose name is free comes last or first.
    for names in (("a", "b", "c", "d"), ("d", "c", "b", "a")):
        old = [(name, f"old {name}", None) for name in names[:3]]
        new = [(name, f"new {name}", was) for was, name in pairwise(names)]
        declare(q, *old, worker="old")
        before = _ids(q)
        expect("beside the old code", set(declare(q, *new).values()), {"waiting"})
        sessions.hand.execute("delete from faultline.workers where id = 'old'")
        expect("after it", set(declare(q, *new).values()), {"taken"})
        after = {name: before[was] for was, name in pairwise(names)}
        expect("each has its history", _ids(q), after)
        expect("again", set(declare(q, *new).values()), {"known"})
        # A worker of the old code starts once more: what it knows ticks already, by other names.
        expect("the old code", set(declare(q, *old, worker="old").values()), {"waiting"})
        expect("one alone", declare(q, old[0], worker="old"), {names[0]: "waiting"})
        expect("none is doubled", _ids(q), after)
        sessions.hand.execute("delete from faultline.workers where id = 'new'")
        expect("back", set(declare(q, *old, worker="old").values()), {"taken"})
        expect("each has its history again", _ids(q), before)
        sessions.hand.execute("delete from faultline.schedules")
        sessions.hand.execute("delete from faultline.workers")


@probe("declare_schedules", "has_moved", "find_declared", "declarations_in_order")
def a_new_schedule_may_have_the_name_that_another_had_before(sessions: Sessions) -> None:
    q = sessions.open()
    declare(q, ("report", "d1", None), worker="old")
    sessions.hand.execute("delete from faultline.workers")
    declare(q, ("daily", "d2", "report"), worker="old")
    before = _ids(q)
    sessions.hand.execute("delete from faultline.workers")
    # Code that no longer says what its schedule was called.
    expect("then", declare(q, ("daily", "d3", None), ("report", "d4", None)), {"daily": "taken", "report": "made"})
    expect("the history", _ids(q)["daily"], before["daily"])


@probe("declare_schedules", "names_before")
def a_schedule_with_several_names_before_is_found_by_the_one_in_force(sessions: Sessions) -> None:
    q = sessions.open()
    last = ("c", "d3", ["b", "a"])
    # Where the first rename came into force, and where it never did. Beside them, another schedule.
    for code in ([("a", "d1", None)], [("a", "d1", None), ("b", "d2", "a")]):
        for one in code:
            sessions.hand.execute("delete from faultline.workers")
            declare(q, one, ("other", "d0", None), worker="old")
        before = _ids(q)
        expect("beside the old code", declare(q, last), {"c": "waiting"})
        sessions.hand.execute("delete from faultline.workers")
        expect("after it", declare(q, last), {"c": "taken"})
        name = code[-1][0]
        expect("its history", _ids(q)["c"], before[name])
        # The code changes: what the schedule was called here is still known, for code that comes back.
        sessions.hand.execute("delete from faultline.workers")
        expect("changed", declare(q, ("c", "d4", ["b", "a"])), {"c": "taken"})
        sessions.hand.execute("delete from faultline.workers")
        expect("back", declare(q, code[-1], worker="old"), {name: "taken"})
        expect("its history again", _ids(q), before)
        sessions.hand.execute("delete from faultline.schedules")
        sessions.hand.execute("delete from faultline.workers")


@probe("declare_schedules")
def workers_of_different_code_lock_schedules_in_one_order(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    declare(q, *((name, name, None) for name in "abc"), worker="old")
    sessions.hand.execute("delete from faultline.workers")
    other.begin()
    other.execute("select from faultline.schedules where name = 'a' for update")
    # It renames c first, and a last.
    answer = q.start(lambda one: declare(one, ("b", "1", "a"), ("c", "2", "b"), ("d", "3", "c")))
    sessions.wait_until_blocked(q, answer)
    expect("free", other.execute("select name from faultline.schedules where name = 'c' for update skip locked"), [("c",)])
    other.rollback()
    expect("then", set(answer.result().values()), {"taken"})


@probe("declare_schedules")
def who_declares_a_schedule_otherwise_than_is_in_force_is_seen(sessions: Sessions) -> None:
    q = sessions.open()

    def seen() -> dict[str, int]:
        return {line.name: line.declared_otherwise for line in q.run(reads.schedules())}

    declare(q, ("report", "d1", None), ("other", "e1", None), worker="old")
    expect("nobody", seen(), {"report": 0, "other": 0})
    code = ("daily", "d2", ["weekly", "report"])
    declare(q, code, ("other", "e2", None))
    declare(q, ("other", "e3", None), worker="third")
    expect("beside the old code", seen(), {"report": 1, "other": 2})
    sessions.hand.execute("delete from faultline.workers where id = 'old'")
    declare(q, code)
    expect("one is in force now", seen(), {"daily": 0, "other": 2})
    declare(q, ("other", "e2", None))
    expect("and the other, not with the third's code", seen(), {"daily": 0, "other": 1})
    noted = "select waiting_schedules from faultline.workers where id = 'new'"
    expect("what is noted", q.value(noted), [])


@probe("change_schedule", "tick")
def an_overlap_that_is_no_longer_allowed_knows_all_that_run(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    write(q)

    def tick() -> str:
        sessions.clock.advance(60)
        sessions.hand.execute("update faultline.schedules set next_at = null")
        outcome: str = q.value(
            "select outcome from faultline.tick('s', (select revision from faultline.schedules), null,"
            " array[faultline.clock()], '[]', faultline.clock() + interval '1 minute')"
        )
        return outcome

    tick()
    (runs_on,) = take(q)
    tick()
    done(q, *take(q))
    write(q, overlap="skip")
    expect("while the first one runs", tick(), "skipped")
    done(q, runs_on)
    expect("then", tick(), "fired")

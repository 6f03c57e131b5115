"""A flow as a tree: in a terminal, and over time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID
from xml.etree import ElementTree as ET

from faultline.core.model import JobState
from faultline.explain import child_strip, tree
from faultline.explain.tree_text import tree as in_text
from faultline.store.reads.flows import LETTERS, Call, Children, Flow, FlowJob, Signal

START = datetime(2026, 1, 1, 10, tzinfo=UTC)
NOW = START + timedelta(seconds=100)
ROOT = UUID(int=1)
HOSTILE = "<script>\"'>&]]>\x00\ud800"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def job(number: int = 1, call_id: int | None = None, state: str = "queued", **fields: object) -> FlowJob:
    made: dict[str, object] = {
        "id": UUID(int=number), "task": "article", "queue": "default", "state": JobState(state), "suspended": False,
        "attempt": 1, "max_attempts": 3, "fencing_token": 2, "created_at": at(0), "next_run_at": None, "claimed_at": at(0),
        "finished_at": None, "last_error": None, "call_id": call_id, "index": 0, "depth": 0,
    }  # fmt: skip
    return FlowJob(**{**made, **fields})  # type: ignore[arg-type]


def call(number: str, kind: str = "step", name: str = "draft", **fields: object) -> Call:
    made: dict[str, object] = {
        "id": int(number.replace(".", "0")), "job_id": ROOT, "number": number, "kind": kind, "name": name, "digest": "d",
        "fencing_token": 1, "begun_at": at(1), "awaited": False, "until": None, "policy": None, "total": None, "spawned": 0,
        "tries": 1, "ended_at": at(2), "outcome": "done", "result": None, "error": None,
    }  # fmt: skip
    return Call(**{**made, **fields})  # type: ignore[arg-type]


def waits(number: str, kind: str = "signal", name: str = "approval", **fields: object) -> Call:
    return call(number, kind, name, **{"awaited": True, "ended_at": None, "outcome": None, **fields})


def children(call_id: int, cells: str) -> Children:
    counts = {name: cells.count(letter) for letter, name in LETTERS.items()}
    failed = {"failed_ids": [UUID(int=9)], "failed_indexes": [57], "failed_errors": ["ValueError: no\n…"]}
    return Children(call_id, len(cells), cells=cells, **counts, **failed)  # type: ignore[arg-type]


def flow(
    jobs: list[FlowJob], calls: list[Call], groups: list[Children] | None = None, signals: list[Signal] | None = None
) -> Flow:
    return Flow(ROOT, ROOT, jobs, calls, groups or [], signals or [], [])


def shown(found: Flow) -> list[str]:
    return ["".join(text for text, _ in line) for line in in_text(found, now=NOW, columns=100)]


def test_a_terminal_shows_each_call_under_its_job_and_what_it_waits_for() -> None:
    lines = shown(
        flow(
            [job(suspended=True), job(2, call_id=2, state="failed", task="part", last_error="ValueError: no\n…")],
            [
                call("1", tries=3, result={"ok": True}),
                call("2", "children", "part", total=1),
                waits("3", until=at(3700)),
            ],
            [children(2, "f")],
        )
    )

    assert lines == [
        f"article  {ROOT}  waiting for the signal approval",
        '├─ 1  step draft  done  1.0 s, 3 tries  {"ok": true}',
        "├─ 2  children of part  done  after 1.0 s, 1 of 1 ended: 1 failed",
        f"│  └─ part  {UUID(int=2)}  failed  ValueError: no",
        "└─ 3  signal approval  waiting  for 99 s, until in 60 min",
    ]


def test_the_calls_of_a_branch_stand_below_it() -> None:
    rows = tree.rows(flow([job()], [call("1"), call("1.1"), call("1.2"), call("2"), call("7.1")]), NOW)

    assert [(row.call.number if row.call else "", row.depth) for row in rows] == [
        ("", 0), ("1", 1), ("1.1", 2), ("1.2", 2), ("2", 1), ("7.1", 1),
    ]  # fmt: skip


def test_more_than_fifty_children_are_a_strip_with_a_character_each() -> None:
    lines = shown(flow([job()], [waits("1", "children", "part", total=60)], [children(1, "s" * 57 + "frq")]))

    assert "57 succeeded, 1 failed, 1 running, 1 queued" in lines[1]
    assert lines[2].strip() == "■" * 57 + "✗▶·"
    assert lines[3].strip() == f"57 failed: {UUID(int=9)}  ValueError: no"


def test_a_cell_that_many_children_share_shows_the_worst_of_them() -> None:
    assert child_strip.shared("sssfss", 3) == [("s", 0, 2), ("f", 2, 2), ("s", 4, 2)]
    picture = ET.fromstring(child_strip.draw(children(1, "s" * 99_999 + "f")))  # noqa: S314 - our own picture
    cells = [cell.attrib["class"] for cell in picture.iter("rect")]

    assert len(cells) <= 1000
    assert cells[-1] == "cell cell-failed"


def test_over_time_waits_are_hatched_and_signals_are_marks() -> None:
    sent = Signal(1, ROOT, HOSTILE, None, None, None, at(50), None, "2", at(51))
    rows = tree.rows(
        flow([job()], [call("1"), call("2", "signal", "approval", begun_at=at(3), ended_at=at(51))], signals=[sent]),
        NOW,
    )
    timeline = tree.Timeline(rows, NOW)

    step, wait = (ET.fromstring(timeline.draw(row)) for row in rows[1:])  # noqa: S314 - our own picture

    assert [bar.attrib["class"] for bar in step.iter("rect")] == ["time-call time-done"]
    assert [(bar.attrib["class"], bar.attrib["fill"]) for bar in wait.iter("rect")] == [("hatched", "url(#hatch)")]
    assert [mark.attrib["class"] for mark in wait.iter("svg") if "mark" in mark.get("class", "")] == ["mark-signal"]


def test_no_call_says_its_kind_twice() -> None:
    lines = shown(flow([job()], [call("1", "saga", "saga"), call("2", "race", "race"), call("3", "after", "after")]))

    assert [line.split("  done")[0] for line in lines[1:]] == ["├─ 1  saga", "├─ 2  race", "└─ 3  comes after"]


def test_a_call_of_an_ended_job_is_not_finished() -> None:
    ended = job(state="cancelled", finished_at=at(60))
    open_call, asleep = waits("1"), waits("2", "sleep", "sleep", until=at(90))

    rows = tree.rows(flow([ended], [open_call, asleep]), NOW)

    assert [row.state for row in rows[1:]] == ["not finished", "not finished"]


def test_a_job_whose_program_has_changed_says_so() -> None:
    lines = shown(flow([job(program_changed="job 1: the program has changed: call 2 is new.\n…")], []))

    assert lines == [f"article  {ROOT}  queued  does not go on: job 1: the program has changed: call 2 is new."]


def test_a_wait_without_a_limit_has_no_end() -> None:
    assert tree.limit(datetime(9999, 1, 1, tzinfo=UTC)) is None
    assert tree.limit(at(5)) == at(5)


def test_a_sleep_is_over_when_its_time_is() -> None:
    over, asleep = waits("1", "sleep", "sleep", until=at(50)), waits("2", "sleep", "sleep", until=at(200))

    rows = tree.rows(flow([job(suspended=True)], [over, asleep]), NOW)

    assert [(row.state, tree.took(row, NOW)) for row in rows[1:]] == [("done", "49 s"), ("waiting", "1 min 39 s")]

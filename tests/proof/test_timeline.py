"""The picture of a drill: a lane for each epoch, refused writes in red, and nothing in it that a browser could run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from faultline.explain import svg
from faultline_proof import epochs, timeline
from faultline_proof.verdict import Verdict
from tests.cli.commands import faultline

if TYPE_CHECKING:
    from pathlib import Path

START = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;]]>\x00\x1b\ud800 https://example.invalid"


def event(seconds: float, name: str, worker: str | None = None, **fields: Any) -> dict[str, Any]:
    """A line as an actor writes it; without a worker, a note of the drill itself."""
    at = (START + timedelta(seconds=seconds)).isoformat()
    return {"at": at, **({"level": "info", "worker_name": worker} if worker else {}), "event": name, **fields}


def race(job_id: str = "j") -> list[dict[str, Any]]:
    """A loses its lease and is refused, B finishes the job."""
    return [
        event(0.5, "lease_acquired", "A", job_id=job_id, token=1),
        event(0.5, "execution_started", "A", job_id=job_id, token=1),
        event(1.6, "lease_reaped", "B", job_id=job_id, token=1, state="queued", reason="lease_expired"),
        event(1.7, "lease_acquired", "B", job_id=job_id, token=2),
        event(1.7, "execution_started", "B", job_id=job_id, token=2),
        event(2.0, "lease_renewed", "B", job_id=job_id, token=2),
        event(3.0, "stale_write_blocked", "A", job_id=job_id, stale_token=1, current_token=2, reason="token_mismatch"),
        event(3.1, "job_completed", "B", job_id=job_id, token=2),
    ]


def simple(job_id: str, at: float) -> list[dict[str, Any]]:
    return [
        event(at, "lease_acquired", "A", job_id=job_id, token=1),
        event(at, "execution_started", "A", job_id=job_id, token=1),
        event(at + 0.1, "job_completed", "A", job_id=job_id, token=1),
    ]


def parsed(*verdicts: Verdict) -> ET.Element:
    return strictly(timeline.render(list(verdicts)))


def strictly(text: str) -> ET.Element:
    """Read a page with a parser that forgives nothing."""
    doctype, _, document = text.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    return ET.fromstring(document)  # noqa: S314 - our own page


def picture(verdict: Verdict) -> ET.Element:
    found = parsed(verdict).find(".//svg[@class='lanes']")
    assert found is not None
    return found


def marks(drawn: ET.Element, shape: str) -> list[ET.Element]:
    return drawn.findall(f".//svg[@class='mark-{shape}']")


def texts(drawn: ET.Element, kind: str) -> list[str | None]:
    return [found.text for found in drawn.findall(f".//text[@class='{kind}']")]


def test_every_epoch_has_a_lane_with_its_token_and_worker() -> None:
    drawn = picture(Verdict("lease-race", race()))

    assert texts(drawn, "job") == ["job j"]
    assert texts(drawn, "who") == ["token 1 · worker A", "token 2 · worker B"]


def test_a_refused_write_is_a_red_cross_with_its_reason_in_the_lane_of_the_stale_token() -> None:
    drawn = picture(Verdict("lease-race", race()))

    (cross,) = marks(drawn, "refused")
    first_claim, second_claim = marks(drawn, "claim")
    assert cross.get("y") == first_claim.get("y") != second_claim.get("y")
    assert texts(drawn, "refused-name") == ["refused: token mismatch"]
    assert ".refused { stroke: var(--bad);" in timeline.STYLE


def test_the_ledger_row_the_heartbeat_and_the_takeover_stand_in_the_lane_of_the_second_worker() -> None:
    drawn = picture(Verdict("lease-race", race()))

    claim = marks(drawn, "claim")[1]
    for shape in ("ledger", "beat", "right"):
        assert [mark.get("y") for mark in marks(drawn, shape)] == [claim.get("y")], shape


def test_time_runs_from_left_to_right() -> None:
    drawn = picture(Verdict("lease-race", race()))

    def x(shape: str, place: int = 0) -> float:
        return float(str(marks(drawn, shape)[place].get("x")).rstrip("%"))

    assert 0 < x("claim") < x("reap") < x("claim", 1) < x("beat") < x("refused") < x("ledger") < 100


def test_a_killed_worker_ends_its_lane_and_the_kill_is_a_line_with_its_name() -> None:
    killed = [
        event(0, "lease_acquired", "A", job_id="j", token=1),
        event(0, "execution_started", "A", job_id="j", token=1),
        event(1, "worker_killed", worker_name="A", signal="SIGKILL"),
        event(4, "lease_reaped", "B", job_id="j", token=1, state="queued", reason="worker_lost"),
    ]
    drawn = picture(Verdict("crash-mid-execution", killed))

    assert texts(drawn, "fault-name") == ["worker killed A", "killed"]
    assert len(drawn.findall(".//line[@class='fault']")) == 1
    assert len(marks(drawn, "death")) == 1


def test_a_failure_that_the_reaper_tells_of_is_no_lane_of_the_reaper() -> None:
    killed = [
        event(0, "lease_acquired", "A", job_id="j", token=1),
        event(1, "worker_killed", worker_name="A", signal="SIGKILL"),
        event(4, "lease_reaped", "B", job_id="j", token=1, state="failed", reason="worker_lost"),
        event(4, "job_failed", "B", job_id="j", token=1, reason="worker_lost", error="lost"),
    ]

    assert [len(job) for job in epochs.read(killed).jobs] == [1]


def test_a_barrier_is_no_fault() -> None:
    held = event(0.6, "fault_took_effect", "A", point="before_complete_sent", action="barrier")
    cut = event(0.7, "fault_took_effect", "A", point="after_complete_committed", action="cut")

    assert texts(picture(Verdict("lease-race", [*race(), held, cut])), "fault-name") == ["cut A at after complete committed"]


def test_of_thousands_of_jobs_those_that_tell_something_are_shown_and_the_others_counted() -> None:
    trace = [line for n in range(2000) for line in simple(f"dull {n}", n / 1000)]
    trace += [line for n in range(timeline.JOBS_MAX + 3) for line in race(f"contested {n}")]
    page = parsed(Verdict("lease-race", trace))

    drawn = page.find(".//svg[@class='lanes']")
    assert drawn is not None
    assert texts(drawn, "job") == [f"job contested {n}" for n in range(timeline.JOBS_MAX)]
    caption = page.findtext(".//figcaption")
    assert caption is not None
    assert "2,003 are not: 3 more that were taken over, and 2,000 that ran once and ended" in caption


def test_the_picture_is_told_in_words_as_well() -> None:
    page = parsed(Verdict("lease-race", race()))

    drawn = page.find(".//svg[@class='lanes']")
    assert drawn is not None
    title, desc = drawn.find("title"), drawn.find("desc")
    assert title is not None
    assert desc is not None
    assert drawn.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    assert "token 1, worker A" in str(desc.text)
    assert "write refused (token mismatch) at 2.50 s" in str(desc.text)
    assert " ".join(str(item.text) for item in page.findall(".//details//li")) == desc.text


def test_whatever_stands_in_an_event_is_text() -> None:
    def page_about(text: str) -> ET.Element:
        trace = [{**line, "job_id": text, "worker_name": text} for line in race()]
        trace += [{**line, "reason": text, "token": text} for line in race()]
        trace += [event(1, text, worker_name=text), {"event": text, "at": text}]
        verdict = Verdict(text, trace)
        verdict.took_effect(text)
        verdict.expect(text, [text], text)
        return parsed(verdict, Verdict("other", skipped=text))

    page = page_about(HOSTILE)

    assert [element.tag for element in page.iter()] == [element.tag for element in page_about("plain").iter()]
    assert [name for element in page.iter() for name in element.attrib if name.startswith("on")] == []
    assert any("<script>alert(1)</script>" in str(element.text) for element in page.iter("text"))


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = timeline.render([Verdict("lease-race", race())])

    page = strictly(text)
    assert not {"script", "link", "img", "iframe", "object", "use", "a"} & {element.tag for element in page.iter()}
    assert [name for element in page.iter() for name in element.attrib if name.rpartition("}")[2] in ("href", "src")] == []
    for reference in ("http:", "https:", "url(", "@import", "//"):
        assert reference not in text


def test_a_drill_that_showed_nothing_says_so() -> None:
    page = parsed(Verdict("lease-race"))

    assert page.find(".//svg[@class='lanes']") is None
    assert "None, so nothing was shown." in [element.text for element in page.iter("p")]
    assert page.findtext(".//span[@class='verdict broken']") == "failed"


@pytest.mark.long
def test_the_command_draws_the_drill_that_it_ran(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "race.html"

    ran = faultline("drill", "lease-race", "--dsn", dsn, "--html", str(file), "--json")

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["faults"] == {"heartbeat of A muted": 1}
    drawn = strictly(file.read_text()).find(".//svg[@class='lanes']")
    assert drawn is not None
    assert texts(drawn, "who") == ["token 1 · worker A", "token 2 · worker B"]
    assert texts(drawn, "refused-name") == ["refused: token mismatch"]
    assert texts(drawn, "ledger-name") == ["in the ledger"]


def test_labels_that_would_touch_stand_in_rows_of_their_own() -> None:
    wide, other = (svg.Label(50, "a long label", "middle", "reap-name") for _ in range(2))
    left = svg.Label(2, "left", "start", "reap-name")

    assert svg.in_rows([wide, other, left]) == [[left, wide], [other]]

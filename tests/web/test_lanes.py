"""The picture and the story of a job: whatever is on record can be drawn, and nothing else is said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID
from xml.etree import ElementTree as ET

import pytest

from faultline.core.journal import EpochEnd
from faultline.core.model import JobRecord, JobState
from faultline.explain import attempt_timeline
from faultline.explain.epochs import Epoch, RefusedWrite
from faultline.explain.formatting import duration, rate, short, size
from faultline.explain.time_axis import Scale
from faultline.web.pages import story

START = datetime(2026, 1, 1, 10, 2, 1, tzinfo=UTC)
LATER = START + timedelta(seconds=60)
HOSTILE = "<script>\"'>&]]>\x00\ud800"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


JOB = JobRecord(
    id=UUID(int=1), state=JobState.SUCCEEDED, queue="mail", task="charge", priority=0, attempt=1, max_attempts=3,
    fencing_token=2, created_at=at(0), next_run_at=None, claimed_at=at(31.6), finished_at=at(41), owner="b/1",
    lease_expires_at=None, renewals=None, reaps=None, idempotency_key=None, last_error=None, flow_id=None, suspended=False,
    progress=None, args={}, result=None, expires_at=None, unique_key=None,
    group=None, in_group=False,
)  # fmt: skip
REFUSED = RefusedWrite(at(38), "complete", "token_mismatch", 2)
STALLED = Epoch(1, "a/1", at(1), at(31.5), EpochEnd.REAPED, "lease_expired", 1, 3, at(31), (REFUSED,))
FINISHED = Epoch(2, "b/1", at(31.6), at(41), EpochEnd.SUCCEEDED)
FAILED = Epoch(1, "a/1", at(1), at(3), EpochEnd.FAILED, "ValueError: no such order\n  File x", 1)
RUNNING = Epoch(2, "a/2", at(4000), None, EpochEnd.RUNNING, None, 2, 1, at(4030))


def drawn(*epochs: Epoch, now: datetime = LATER, job: JobRecord = JOB) -> ET.Element:
    return ET.fromstring(attempt_timeline.draw(job, epochs, now=now, description=HOSTILE))  # noqa: S314 - our own picture


def marks(picture: ET.Element) -> list[str]:
    return [mark.attrib["class"].removeprefix("mark-") for mark in picture.iter("svg") if "mark-" in mark.get("class", "")]


def told(*epochs: Epoch, now: datetime = LATER, job: JobRecord = JOB) -> str:
    return " ".join(sentence.striptags() for sentence in story.sentences(job, epochs, now))


def test_the_race_has_two_lanes_a_takeover_a_refused_write_and_a_row_in_the_ledger() -> None:
    picture = drawn(STALLED, FINISHED)

    assert sorted(marks(picture)) == ["claim", "claim", "down", "ledger", "queued", "reap", "refused"]
    bars = [bar.attrib["class"] for bar in picture.iter("rect")]
    assert bars == ["beyond", "run", "run"]


def test_the_race_is_told_in_the_order_in_which_it_happened() -> None:
    assert told(STALLED, FINISHED) == (
        "Worker A claimed the job at 10:02:02 under token 1 and held it until 10:02:32, when its lease expired."
        " Worker B took over at 10:02:32 under token 2."
        " At 10:02:39 Worker A came back and tried to complete it."
        " The database refused: token 1 was no longer the current one, 2 was."
        " Worker B finished it at 10:02:42."
        " The ledger has one row for the job, under token 2."
    )


def test_a_worker_that_took_a_job_twice_keeps_its_letter() -> None:
    assert attempt_timeline.letters([FAILED, FINISHED, RUNNING]) == {"a": "A", "b": "B"}


def test_a_running_epoch_shows_how_long_its_lease_is_good() -> None:
    running = replace(JOB, state=JobState.RUNNING)

    picture = drawn(FAILED, RUNNING, now=at(4010), job=running)

    assert [bar.attrib["class"] for bar in picture.iter("rect")].count("lease") == 1
    assert "holds it now; the lease is valid for 20 s" in told(FAILED, RUNNING, now=at(4010), job=running)
    assert "another worker may take over now" in told(RUNNING, now=at(4040), job=running)


def test_a_long_wait_is_drawn_short_and_says_how_long_it_was() -> None:
    picture = drawn(FAILED, RUNNING, now=at(4010), job=replace(JOB, state=JobState.RUNNING))

    names = ["".join(name.itertext()) for name in picture.iter("text")]
    assert "1 h 6 min" in names


def test_a_scale_keeps_the_order_of_times_and_stays_within_the_picture() -> None:
    scale = Scale([(10, 20), (1000, 1010), (15, 25)], start=0, end=5000)

    places = [scale.x(seconds) for seconds in (0, 5, 10, 12, 25, 500, 1000, 1005, 1010, 3000, 5000)]

    assert places == sorted(places)
    assert 0 < places[0] < places[-1] < 100
    assert scale.x(20) - scale.x(10) == pytest.approx(scale.x(1010) - scale.x(1000))
    assert [(piece.start, piece.end) for piece in scale.cuts] == [(0, 10), (25, 1000), (1010, 5000)]


def test_a_job_that_was_given_back_is_not_said_to_have_been_had_by_nobody() -> None:
    waiting = replace(JOB, state=JobState.QUEUED, next_run_at=at(0), fencing_token=0)
    given_back = replace(waiting, fencing_token=2)
    recovered = Epoch(1, "a/1", at(1), at(2), EpochEnd.RECOVERED)

    assert told(job=waiting) == "No worker has claimed this job yet. It has been waiting in mail for 1 min."
    assert told(job=replace(waiting, state=JobState.CANCELLED)) == "It was cancelled before any worker claimed it."
    for epochs in ((), (FAILED,)):
        assert "A worker took it under token 2 and released it without an error" in told(*epochs, job=given_back)
        assert "worker has claimed" not in told(*epochs, job=replace(given_back, state=JobState.CANCELLED))
    assert "It was held" not in told(recovered, job=given_back)
    assert "It was held" not in told(FAILED, job=replace(given_back, suspended=True))
    assert "It was held" not in told(STALLED, FINISHED)


def test_a_job_that_failed_at_once_is_not_said_to_have_used_up_its_attempts() -> None:
    failed = replace(JOB, state=JobState.FAILED, fencing_token=1, attempt=1)

    assert told(FAILED, job=failed).endswith("The job has failed at once: an error of this kind is not tried again.")
    assert told(FAILED, job=replace(failed, attempt=3)).endswith("No attempt is left: the job has failed.")


@pytest.mark.parametrize(
    "epoch",
    [
        Epoch(1, None, None, None, EpochEnd.UNRECORDED, refusals=(REFUSED,)),
        Epoch(1, None, None, None, EpochEnd.UNRECORDED),
        Epoch(1, "a/1", None, at(3), EpochEnd.FAILED, "boom"),
        Epoch(1, "a/1", at(1), at(1), EpochEnd.CANCELLED, " \n "),
        Epoch(9, HOSTILE, at(1), at(2), EpochEnd.REAPED, HOSTILE, refusals=(RefusedWrite(at(1), HOSTILE, HOSTILE, None),)),
        Epoch(9, HOSTILE, at(1), at(2), EpochEnd.FAILED, HOSTILE),
        Epoch(9, "a/1", at(1), at(2), EpochEnd.RECOVERED),
        replace(RUNNING, lease_expires_at=None),
    ],
    ids=str,
)
def test_whatever_is_on_record_can_be_drawn_and_told(epoch: Epoch) -> None:
    for epochs in ([epoch], [epoch, FINISHED], [STALLED, epoch], [epoch] * 40):
        drawn(*epochs)
        assert "<script" not in "".join(story.sentences(JOB, epochs, at(60)))


def test_times_are_utc_wherever_the_database_stands() -> None:
    elsewhere = timezone(timedelta(hours=5, minutes=30))

    picture = drawn(FINISHED, now=at(60).astimezone(elsewhere))

    assert any("10:02:3" in "".join(name.itertext()) for name in picture.iter("text"))


def test_figures_are_short() -> None:
    assert [duration(s) for s in (0, 0.0004, 0.012, 0.9996, 1.25, 9.97, 75, 7205, 90000)] == [
        "0 ms", "0.4 ms", "12 ms", "1.0 s", "1.2 s", "10 s", "1 min 15 s", "2 h", "1 d 1 h"
    ]  # fmt: skip
    assert [short(n) for n in (0, 9999, 12_345, 1_234_567)] == ["0", "9,999", "12.3 k", "1.2 M"]
    assert [rate(n) for n in (0, 0.5, 3.21, 1234.5)] == ["0/s", "30.0/min", "3.2/s", "1,234/s"]
    assert [size(n) for n in (0, 999, 1_500, 150_000_000)] == ["0 B", "999 B", "1.5 kB", "150 MB"]

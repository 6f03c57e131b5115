"""Schedules over HTTP and on pages: who may see and change them, what is refused, and what the strips show."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from faultline.store.reads import tick_history, views
from tests.cli.commands import faultline
from tests.cli.test_doctor import visit
from tests.web.conftest import refused
from tests.web.schedule_scenes import declared, hours, line, made, ticked
from tests.web.site import browsed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Clock, Driver
    from tests.web.conftest import Api

NEW = {"cron": "0 9 * * mon-fri", "tz": "Europe/Berlin", "task": "send", "args": {"to": "ada"}, "reason": "asked"}
#: Each door that changes something: method, path, body.
CHANGES: dict[str, tuple[str, str, Any]] = {
    "set": ("PUT", "/schedules/report", NEW),
    "remove": ("DELETE", "/schedules/report", None),
    "pause": ("POST", "/schedules/report/pause", {"reason": "r"}),
    "resume": ("POST", "/schedules/report/resume", {"reason": "r"}),
    "reset": ("POST", "/schedules/report/reset", {"reason": "r"}),
    "run": ("POST", "/schedules/report/run", {"reason": "r"}),
    "backfill": ("POST", "/schedules/report/backfill", {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}),
}
READS = ("/schedules/report", "/schedules/report/ticks")
COUNTED = (
    "select (select count(*) from faultline.jobs), (select count(*) from faultline.ticks),"
    " (select json_agg(s order by name) from faultline.schedules s)::text, (select count(*) from faultline.journal)"
)


def send(api: Api, door: str) -> Any:
    method, path, body = CHANGES[door]
    return api.http.request(method, f"/api/v1{path}", json=body)


# Over HTTP


def test_a_schedule_is_set_read_changed_and_removed(api: Api, db: Driver) -> None:
    first = api.http.put("/api/v1/schedules/report", json=NEW)
    again = api.http.put("/api/v1/schedules/report", json=NEW)
    ticked(db)
    told = api.get("/schedules/report?count=3").json()

    assert first.json() == {"name": "report", "changed": True, "queue": "default", "warnings": []}
    assert again.json()["changed"] is False
    assert told["state"] == "active"
    assert told["schedule"]["cron"] == "0 9 * * mon-fri"
    assert told["schedule"]["job"]["args"] == {"to": "ada"}
    assert told["schedule"]["changed_by"].startswith("test (API key")
    assert told["schedule"]["reason"] == "asked"
    assert len(told["upcoming"]) == 3
    assert [one["name"] for one in api.get("/schedules").json()["schedules"]] == ["report"]
    assert api.http.delete("/api/v1/schedules/report").json() == {"name": "report", "removed": True}
    refused(api.get("/schedules/report"), 404, "ScheduleNotFound")


def test_without_a_queue_it_is_the_one_on_which_workers_serve_the_task(api: Api, db: Driver) -> None:
    def announced(queues: list[str], tasks: list[str]) -> None:
        db.heartbeat("w")
        db.execute("update faultline.workers set queues = %s, tasks = %s, heartbeat_at = now() + '1 hour'", queues, tasks)

    def put(**more: Any) -> tuple[str, list[str]]:
        answer = api.http.put("/api/v1/schedules/report", json=NEW | more).json()
        return answer["queue"], answer["warnings"]

    announced(["mail"], ["send"])
    assert put() == ("mail", [])
    # In a queue that was named, it stays.
    queue, [doubt] = put(queue="post")
    assert (queue, "serves the queue post" in doubt) == ("post", True)
    announced(["mail", "post"], ["send"])
    assert put() == ("post", [])
    api.http.delete("/api/v1/schedules/report")
    queue, [doubt] = put()
    assert (queue, "serves the queue default" in doubt) == ("default", True)
    api.http.delete("/api/v1/schedules/report")
    announced(["default", "post"], ["send"])
    queue, [doubt] = put()
    assert (queue, "also serve post" in doubt) == ("default", True)
    assert put(queue="default") == ("default", [])
    announced(["mail", "post"], ["send"])
    queue, [doubt] = put(task="sent", queue="mail")
    assert "no living worker knows the task sent" in doubt
    queue, [doubt] = put(cron=None, tz=None, at="2020-01-01T00:00:00Z", queue="mail")
    assert "its moment has passed" in doubt


def test_a_schedule_is_paused_resumed_and_run_and_the_journal_says_who_and_why(api: Api, db: Driver) -> None:
    made(db)

    paused = api.post("/schedules/report/pause", json={"reason": "the bank is closed"}).json()
    stood = api.get("/schedules/report").json()
    resumed = [api.post("/schedules/report/resume").json()["was_paused"] for _ in range(2)]
    run = api.post("/schedules/report/run", json={"reason": "the auditor asks"})

    assert paused["paused_at"] == stood["schedule"]["paused_at"]
    assert (stood["state"], stood["schedule"]["reason"], stood["upcoming"]) == ("paused", "the bank is closed", [])
    assert resumed == [True, False]
    assert run.status_code == 201
    assert api.get(f"/jobs/{run.json()['job_id']}").json()["task"] == "t"
    (tick,) = api.get("/schedules/report/ticks").json()["ticks"]
    assert (tick["kind"], tick["job_id"], tick["job_state"]) == ("manual", run.json()["job_id"], "queued")
    done = db.run(views.operations(keys=False, entries_max=9))
    assert {(entry.detail["reason"]) for entry in done} >= {"the bank is closed", "the auditor asks"}
    assert all(entry.detail["by"] for entry in done)


def test_a_schedule_of_the_code_that_was_changed_is_reset(api: Api, db: Driver) -> None:
    before = declared(db, group="all")

    told = api.http.put("/api/v1/schedules/report", json={"task": "t", "every": 60}).json()
    back = [api.post("/schedules/report/reset", json={"reason": "enough"}).json() for _ in range(2)]

    assert told["queue"] == "reports"
    lost, kept = told["warnings"]
    assert (lost.startswith("its job had group"), "until it is reset" in kept) == (True, True)
    assert back == [{"name": "report", "changed": True}, {"name": "report", "changed": False}]
    after = line(db)
    assert (after.job, after.overridden, after.reason) == (before.job, False, "enough")
    made(db, "own")
    refused(api.post("/schedules/own/reset"), 409, "IllegalTransition")


def test_a_backfill_runs_ticks_that_have_no_job_and_sent_twice_enqueues_once(api: Api, db: Driver, clock: Clock) -> None:
    made(db)
    hours(db, clock, 3)
    now = line(db).clock
    body = {"from": (now - timedelta(hours=26)).isoformat(), "to": now.isoformat(), "reason": "the import was wrong"}

    first = api.post("/schedules/report/backfill", json=body)
    second = api.post("/schedules/report/backfill", json=body)

    assert (first.status_code, first.json()) == (201, {"name": "report", "jobs": 23})
    assert second.json()["jobs"] == 0
    outcomes = [tick["outcome"] for tick in api.get("/schedules/report/ticks?limit=200").json()["ticks"]]
    assert (outcomes.count("fired"), outcomes.count("backfilled")) == (3, 23)


def test_ticks_come_in_pages_and_each_once(api: Api, db: Driver, clock: Clock) -> None:
    made(db)
    hours(db, clock, 7)
    pages, query = [], "limit=3"
    for _ in range(3):
        page = api.get(f"/schedules/report/ticks?{query}").json()
        pages.append([tick["at"] for tick in page["ticks"]])
        query = f"limit=3&before={page['next_before']}".replace("+", "%2B")

    assert [len(page) for page in pages] == [3, 3, 1]
    assert query.endswith("before=None")
    found = [at for page in pages for at in page]
    assert found == sorted(set(found), reverse=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cron": "0 99 * * *"}, "position 3"),
        ({"cron": "0 9 * * mon-fry"}, "position 9"),
        ({"cron": "0 9 * * * *"}, "every="),
        ({"cron": "0 9 30 2 *"}, "never comes"),
        ({"cron": None}, "one rule"),
        ({"every": 60.0}, "one rule"),
        ({"tz": "Europe/Berlinn"}, "no time zone"),
        ({"cron": None, "every": 60.0}, "leave tz out"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_and_the_answer_says_where(
    api: Api, change: dict[str, Any], said: str
) -> None:
    answer = api.http.put("/api/v1/schedules/report", json=NEW | change)

    assert said in refused(answer, 422, "JobRejected")["detail"]
    refused(api.get("/schedules/report"), 404, "ScheduleNotFound")


@pytest.mark.parametrize(
    "change",
    [
        {"every": 0.5, "cron": None, "tz": None},
        {"catch_up": "some"},
        {"overlap": "never"},
        {"jitter_seconds": -1},
        {"run_at": "2030-01-01T00:00:00Z"},
        {"idempotency_key": "k"},
        {"queue": "\x07"},
        {"at": 5, "cron": None, "tz": None},
        {"reason": "\x1b[2J"},
    ],
)
def test_a_schedule_that_no_queue_would_take_is_refused(api: Api, change: dict[str, Any]) -> None:
    assert refused(api.http.put("/api/v1/schedules/report", json=NEW | change), 422, "InvalidRequest")["errors"]


def test_a_backfill_that_is_too_large_or_upside_down_is_refused(api: Api, db: Driver) -> None:
    made(db, every=1.0)

    large = {"from": "2026-01-01T00:00:00Z", "to": "2026-03-01T00:00:00Z"}
    told = refused(api.post("/schedules/report/backfill", json=large), 422, "JobRejected")
    upside_down = {"from": large["to"], "to": large["from"]}

    assert re.search(r"\b5097600 ticks, and at most 10000\b", told["detail"]), told
    refused(api.post("/schedules/report/backfill", json=upside_down), 422, "InvalidRequest")
    assert db.execute("select count(*) from faultline.jobs") == [(0,)]


@pytest.mark.parametrize("door", [door for door in CHANGES if door != "set"])
def test_an_unknown_schedule_is_not_found(api: Api, door: str) -> None:
    refused(send(api, door), 404, "ScheduleNotFound")


@pytest.mark.parametrize("door", CHANGES)
@pytest.mark.parametrize("scopes", [("read",), ("enqueue",), ("read", "enqueue")])
def test_a_key_without_the_scope_changes_no_schedule(
    caller: Callable[..., Api], db: Driver, door: str, scopes: tuple[str, ...]
) -> None:
    made(db)
    api = caller(*scopes)
    before = db.execute(COUNTED)

    refused(send(api, door), 403, "Forbidden")

    assert db.execute(COUNTED) == before


def test_who_may_not_enqueue_may_not_set_a_schedule(caller: Callable[..., Api]) -> None:
    refused(send(caller("operate", "read"), "set"), 403, "Forbidden")


@pytest.mark.parametrize("door", [*READS, "/schedules"])
def test_a_key_that_may_not_read_sees_no_schedule(caller: Callable[..., Api], db: Driver, door: str) -> None:
    made(db)

    refused(caller("operate", "enqueue").get(door), 403, "Forbidden")


@pytest.mark.parametrize("door", CHANGES)
def test_a_key_of_another_queue_sees_and_changes_no_schedule(caller: Callable[..., Api], db: Driver, door: str) -> None:
    made(db, queue="b")
    bound = caller("operate", "read", "enqueue", queues=["a", "default"])
    before = db.execute(COUNTED)

    answer = send(bound, door)

    refused(answer, *((409, "NameTaken") if door == "set" else (404, "ScheduleNotFound")))
    assert bound.get("/schedules").json() == {"schedules": []}
    for path in READS:
        refused(bound.get(path), 404, "ScheduleNotFound")
    assert db.execute(COUNTED) == before


def test_a_key_of_its_queue_sees_and_changes_a_schedule_but_cannot_move_it_elsewhere(
    caller: Callable[..., Api], db: Driver
) -> None:
    made(db, queue="a")
    made(db, "other", queue="b")
    bound = caller("operate", "read", "enqueue", queues=["a"])

    assert [one["name"] for one in bound.get("/schedules").json()["schedules"]] == ["report"]
    assert bound.post("/schedules/report/pause").status_code == 200
    refused(bound.http.put("/api/v1/schedules/report", json=NEW | {"queue": "b"}), 403, "QueueForbidden")
    refused(bound.http.put("/api/v1/schedules/mine", json=NEW), 403, "QueueForbidden")
    assert bound.http.put("/api/v1/schedules/mine", json=NEW | {"queue": "a"}).status_code == 200


# On pages


def test_the_page_shows_schedules_with_their_ticks_and_what_needs_somebody_first(dsn: str, db: Driver, clock: Clock) -> None:
    made(db, "active", task="<send>")
    made(db, "failing")
    hours(db, clock, 3)
    clock.advance(3600)
    failed = "select faultline.schedule_failed(name, revision, 'JobRejected: too large') from faultline.schedules"
    assert db.execute(f"{failed} where name = 'failing'") == [(True,)]
    ticked(db)

    with browsed(dsn) as site:
        pages = [site.page(f"/schedules?by={by}") for by in ("hour", "day")]

    for page in pages:
        strips = [svg["aria-label"] for svg in page.of("svg") if svg.get("class") == "calendar"]
        assert [(strip or "").partition(",")[0] for strip in strips] == [
            "Ticks of failing: 3 running",
            "Ticks of active: 4 running",
        ]
        assert "JobRejected: too large" in page.text
        assert "<send>" in page.text
        assert "0 * * * * (UTC)" in page.text
        assert "UTC: 1 running" in pages[0].text


def test_a_strip_counts_what_was_done_missed_skipped_and_failed_and_what_is_planned(db: Driver, clock: Clock) -> None:
    made(db, overlap="skip", catch_up="skip")
    hours(db, clock, 1)
    lease = db.claim_one()
    hours(db, clock, 1)
    db.complete(lease)
    hours(db, clock, 1)
    db.fail(db.claim_one(), then="fail", error="no")
    clock.advance(5 * 3600 + 600)
    ticked(db)
    now = line(db).clock
    first = (now - timedelta(hours=12)).replace(minute=0, second=0, microsecond=0)

    strips = db.run(tick_history.strips(["report"], first=first, length=timedelta(hours=1), cells=24))

    fates = [fate for _, cell in sorted(strips["report"].cells.items()) for fate in cell]
    assert fates[:4] == ["done", "skipped", "failed", "missed"]
    assert set(fates[4:]) <= {"missed", "running"}


def test_a_strip_of_many_ticks_says_from_where_on_it_is_known(
    dsn: str, db: Driver, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick_history, "TICKS_MAX", 4)
    made(db)
    hours(db, clock, 9)
    now = line(db).clock
    first = (now - timedelta(hours=12)).replace(minute=0, second=0, microsecond=0)

    strip = db.run(tick_history.strips(["report"], first=first, length=timedelta(hours=1), cells=24))["report"]

    assert sum(cell.get("running", 0) for cell in strip.cells.values()) == 4
    assert strip.read_from == min(strip.cells)


def test_a_schedule_is_paused_resumed_run_and_backfilled_by_form(dsn: str, db: Driver, clock: Clock) -> None:
    made(db, "a/b c")
    hours(db, clock, 2)
    path = "/schedules/a/b%20c"

    with browsed(dsn) as site:
        assert "a/b c" in site.page("/schedules").text
        paused = site.send(path, "/schedules/pause", reason="closed")
        shown = site.page(paused.headers["location"])
        resumed = site.send(path, "/schedules/resume", reason="open")
        run = site.send(path, "/schedules/run", reason="now")
        fields = {"from": "2026-01-01T00:00", "to": "2026-01-01T05:00"}
        without = site.send(path, "/schedules/backfill", **fields)
        filled = site.send(path, "/schedules/backfill", reason="why", **fields)
        after = site.page(filled.headers["location"]).text
        removed = site.send(path, "/schedules/remove", reason="has left")
        gone = site.page(removed.headers["location"]).text

    assert "Removed. Its jobs stay as they are." in gone
    assert "a/b c" not in gone
    assert paused.headers["location"].startswith(path)
    assert "Paused. Its ticks make no jobs" in shown.text
    assert "closed" in shown.text
    assert "schedule_resumed" in resumed.headers["location"]
    assert "schedule_run" in run.headers["location"]
    assert without.status_code == 422
    assert "5 jobs enqueued." in after
    assert "run by hand" in after


def test_the_page_of_a_schedule_shows_the_arguments_and_no_made_up_moment(dsn: str, db: Driver) -> None:
    made(db, args='{"region": "eu", "day": "2000-01-01T00:00:00+00:00"}', tick_arg="day")

    with browsed(dsn) as site:
        shown = site.page("/schedules/report").text
    printed = faultline("schedules", "show", "report", "--dsn", dsn).stdout

    for text in (shown, printed):
        assert '"region": "eu"' in text
        assert '"day": "the moment of the tick"' in text
        assert "2000-01-01" not in text


def test_an_orphaned_schedule_has_no_next_tick(dsn: str, db: Driver) -> None:
    declared(db)
    db.execute("delete from faultline.workers")
    db.heartbeat("other")

    with browsed(dsn) as site:
        pages = [site.page(path).html for path in ("/schedules", "/schedules/report")]
    listed = faultline("schedules", "--dsn", dsn).stdout.splitlines()[1]
    upcoming = faultline("schedules", "next", "report", "--dsn", dsn).stdout

    assert 'data-label="Next"><span class="faint">none' in pages[0]
    assert "<dt>Next tick</dt><dd>none" in pages[1]
    assert "No worker has it in its code." in pages[1]
    assert upcoming == "no tick is to come: report is orphaned\n"
    assert listed.split("(UTC)")[1].split()[0] == "t"  # its task


def test_a_worker_that_declares_a_schedule_otherwise_is_told_of_everywhere(dsn: str, db: Driver) -> None:
    db.heartbeat("one")
    declared(db, worker="one")
    db.heartbeat("two")
    declared(db, worker="two", digest="another")

    said = "1 living worker declares it otherwise"
    with browsed(dsn) as site:
        assert said in site.page("/schedules/report").text
    assert said in faultline("schedules", "show", "report", "--dsn", dsn).stdout
    [note] = [one for one in visit(dsn)["findings"] if one["check"] == "schedules" and one["level"] == "note"]
    assert (note["found"], "rename one of them" in note["todo"]) == (f"report: {said} than what is in force", True)


def test_a_schedule_that_was_changed_is_reset_by_form_and_only_then(dsn: str, db: Driver) -> None:
    declared(db)

    with browsed(dsn) as site:
        as_declared = site.page("/schedules/report").text
        made(db, queue="elsewhere")
        reset = site.send("/schedules/report", "/schedules/reset", reason="enough")
        shown = site.page(reset.headers["location"]).text

    assert "Reset…" not in as_declared
    assert "Reset. What the code of workers says holds again." in shown
    assert (line(db).queue, line(db).overridden, line(db).reason) == ("reports", False, "enough")


def test_a_form_without_its_token_or_for_an_unknown_schedule_changes_nothing(dsn: str, db: Driver) -> None:
    made(db)
    before = db.execute(COUNTED)

    with browsed(dsn) as site:
        for action in ("pause", "resume", "reset", "run", "backfill", "remove"):
            assert site.post(f"/schedules/{action}", {"schedule": "report", "reason": "r"}).status_code == 403
        hidden = site.page("/schedules").hidden("/schedules/pause")
        assert site.post("/schedules/pause", hidden | {"schedule": "nobody"}).status_code == 404
        assert site.get("/schedules/nobody").status_code == 404

    assert db.execute(COUNTED) == before

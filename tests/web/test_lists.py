"""Lists of jobs: every job once, whatever comes and goes meanwhile, and never more than a window of work."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from faultline.core.model import JobState
from faultline.store.database import run_on
from faultline.store.reads import listing
from faultline.store.reads.listing import Wanted
from tests.web.conftest import Api, refused
from tests.web.test_commands import COMMAND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.driver import Driver


def pages(api: Api, **filters: Any) -> Iterator[list[dict[str, Any]]]:
    cursor: dict[str, str] = {}
    while True:
        answer = api.get("/jobs", params={**filters, **cursor})
        assert answer.status_code == 200, answer.text
        yield answer.json()["jobs"]
        if answer.json()["next_cursor"] is None:
            return
        cursor = {"cursor": answer.json()["next_cursor"]}


def ids(api: Api, **filters: Any) -> list[str]:
    return [job["id"] for page in pages(api, **filters) for job in page]


def test_pages_show_every_job_once_newest_first(api: Api, db: Driver) -> None:
    made = [api.submit() for _ in range(7)]
    db.complete(*db.claim(3))

    assert ids(api, limit=2) == made[::-1]


def test_a_job_that_comes_meanwhile_neither_repeats_nor_hides_another(api: Api) -> None:
    made = [api.submit() for _ in range(4)]
    shown: list[str] = []

    for page in pages(api, limit=2):
        shown += [job["id"] for job in page]
        if len(shown) == 2:
            api.submit()

    assert shown == made[::-1]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_jobs_that_ended_badly_come_in_the_order_in_which_they_ended(api: Api, db: Driver, state: str) -> None:
    api.submit()
    ended = []
    for lease in reversed(db.claim(1) + [lease for _ in range(4) if api.submit() for lease in db.claim(1)]):
        db.fail(lease, then="fail" if state == "failed" else "cancel")
        ended.append(str(lease.job_id))

    assert ids(api, state=state, limit=2) == ended[::-1]


def test_waiting_jobs_of_a_queue_come_in_the_order_in_which_they_will_run(api: Api, db: Driver) -> None:
    for priority in (5, -5, 0, -5):
        api.submit(priority=priority)

    shown = ids(api, state="queued", queue="default", limit=1)

    assert shown == [str(lease.job_id) for lease in db.claim()]


def test_filters_are_kept(api: Api, db: Driver) -> None:
    made = {(task, queue): api.submit(task, queue=queue) for task in ("t", "u") for queue in ("a", "b")}
    db.complete(db.claim_one(queue="a"))
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()

    assert ids(api, task="u", queue="b") == [made["u", "b"]]
    assert ids(api, state="succeeded") == [made["t", "a"]]
    assert ids(api, state="queued", task="t") == [made["t", "b"]]
    assert len(ids(api, created_before=later)) == 4
    assert ids(api, created_after=later) == []


def test_a_list_stops_after_a_window_and_says_how_to_go_on(db: Driver, api: Api) -> None:
    db.connection.execute("set session_replication_role = replica")
    db.connection.execute(
        "insert into faultline.ledger select gen_random_uuid(), 1, now(), now(), now(), 0, 1, 5, 'w', 'q',"
        " case when n <= 3 then 'rare' else 't' end, null, '{}', '1' from generate_series(1, 12000) n"
    )

    answers = list(pages(api, task="rare", limit=10))
    first = run_on(db.connection, listing.jobs(Wanted(task="rare"), page_jobs=10))

    assert sum(map(len, answers)) == 3
    assert len(answers) == 2
    assert first.stopped_early


def test_no_list_reads_a_whole_table(db: Driver) -> None:
    """With a million rows a plan that sorts is a plan that waits."""
    db.connection.execute("set session_replication_role = replica")
    db.connection.execute(
        "insert into faultline.ledger select gen_random_uuid(), 1, now(), now(), now(), 0, 1, 5, 'w', 'q', 't', null, '{}',"
        " '1' from generate_series(1, 20000)"
    )
    db.connection.execute(
        "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args,"
        " queue, task, args, state, finished_at, group_key) select gen_random_uuid(), now(), now(), 30, 0, 5, true, 'q',"
        " 't', '{}', case when n % 2 = 0 then 'queued' else 'failed' end, case when n % 2 = 0 then null else now() end,"
        " case when n % 4 > 1 then 'g' || n % 200 end from generate_series(1, 20000) n"
    )
    db.connection.execute("analyze faultline.ledger, faultline.open_jobs")
    for state, group in itertools.product((None, "succeeded", "failed", "queued"), (None, "g2", "g3")):
        for behind in (False, True):
            wanted = Wanted(state=None if state is None else JobState(state), queue="q", only_queues=["q"], group=group)
            page = run_on(db.connection, listing.jobs(wanted, page_jobs=5))
            open_jobs = group is None or state == {"g2": "queued", "g3": "failed"}[group]
            assert len(page.jobs) == (5 if open_jobs or state is None else 0)
            statement = listing.jobs(wanted, page_jobs=5, behind=page.behind if behind else None)
            rows = db.connection.execute(f"explain {statement.sql}".encode(), statement.params).fetchall()
            plan = "\n".join(row[0] for row in rows)
            about = f"{state} {group} {behind}\n{plan}"
            assert "Seq Scan" not in plan, about
            assert state != "succeeded" or "open_jobs" not in plan, "no open job has succeeded, and there may be millions"
            assert group is not None or "->  Sort" not in plan, about
            assert group is None or state == "succeeded" or "open_jobs_of_group" in plan, about


@pytest.mark.parametrize(
    "cursor",
    [
        *("x", "é", "9" * 400, "id~", "id~x", f"id~{'0' * 33}", f"id~{'0' * 32}\n", f"end~{'0' * 32}", f"end~01~{'0' * 32}"),
        *(f"end~{'9' * 18}~{'0' * 32}", f"turn~5~9e9~{'0' * 32}", f"turn~-0~5~{'0' * 32}"),
    ],
)
def test_a_forged_cursor_is_refused(api: Api, cursor: str) -> None:
    refused(api.get("/jobs", params={"cursor": cursor}), 422, "InvalidRequest")
    refused(api.http.get("/jobs", params={"behind": cursor}), 400, "BadCursor")


def test_a_cursor_of_one_list_is_none_of_another(api: Api, db: Driver) -> None:
    for _ in range(2):
        api.submit()
    cursor = api.get("/jobs?limit=1").json()["next_cursor"]

    refused(api.get("/jobs", params={"cursor": cursor, "state": "failed"}), 409, "OtherList")


def test_jobs_of_other_queues_are_in_no_list(caller: Callable[..., Api], api: Api) -> None:
    bound = caller("read", queues=["a"])
    mine = api.submit(queue="a")
    api.submit(queue="b")

    assert ids(bound) == [mine]
    assert ids(bound, queue="b") == []
    assert ids(bound, state="queued", queue="b") == []


def test_a_job_is_found_by_its_idempotency_key_whoever_sent_it(caller: Callable[..., Api], dsn: str, db: Driver) -> None:
    sender, reader, bound = caller("enqueue"), caller("read"), caller("read", queues=["other"])
    sent = sender.post("/jobs", json={"task": "t"}, headers={"Idempotency-Key": "order-42"}).json()["id"]
    own = str(db.enqueue("t", idempotency_key="order-43"))

    def found(api: Api, key: str) -> list[str]:
        return [job["id"] for job in api.get("/jobs", params={"key": key}).json()["jobs"]]

    assert found(reader, "order-42") == [sent]
    assert found(reader, "order-43") == [own]
    assert found(reader, "order-4") == found(bound, "order-42") == []
    reader.http.post("/sign-in", data={"key": reader.key or ""})
    del reader.http.headers["authorization"]
    page = reader.http.get("/jobs", params={"key": "order-42"}, headers={"Accept": "text/html"}).text
    assert f"/jobs/{sent}" in page
    assert ">order-42<" in page
    listed = subprocess.run(
        [*COMMAND, "jobs", "--key", "order-42", "--json"],
        env={**os.environ, "FAULTLINE_DSN": dsn},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(listed.stdout)["id"] == sent

"""Limits over HTTP and in the dashboard: read, set and reset, by those who may, with who and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.limits.test_reads import claim, enqueue, limit
from tests.web.conftest import Api, new_key, refused
from tests.web.site import browsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver
    from tests.web.site import Site


@pytest.fixture
def site(dsn: str) -> Iterator[Site]:
    with browsed(dsn) as found:
        yield found


def put(api: Api, path: str, **body: Any) -> Any:
    return api.http.put(f"/api/v1{path}", json=body)


def test_limits_are_set_read_and_reset(api: Api, db: Driver) -> None:
    answer = put(api, "/queues/mail/limits", concurrency=2, rate=10, per=60, reason="they asked")
    put(api, "/queues/mail/limits/*", concurrency=1, weight=2)
    put(api, "/queues/mail/limits/tenant/7", ordered=True)
    enqueue(db, "mail", "a", 3)
    claim(db, "mail", 5)

    found = api.get("/queues/mail/limits").json()
    one = api.get("/queues/mail/limits/tenant/7").json()

    assert answer.status_code == 200, answer.text
    assert [(line["group"], line["override"]) for line in found["limits"]] == [
        ("", {"concurrency": 2, "rate": 10, "per": 60, "burst": 10}),
        ("*", {"concurrency": 1, "weight": 2}),
        ("tenant/7", {"ordered": True}),
    ]
    assert "test (API key" in found["limits"][0]["changed_by"]
    assert found["limits"][0]["reason"] == "they asked"
    assert (found["limited"], found["use"]["holding"], found["use"]["waiting"]) == (True, 1, 2)
    assert [line["group"] for line in one["limits"]] == ["tenant/7"]

    gone = api.http.delete("/api/v1/queues/mail/limits/*", params={"reason": "over"})
    assert [line["group"] for line in gone.json()["limits"]] == ["", "tenant/7"]


def test_null_takes_a_limit_away_and_what_is_left_out_stays(api: Api) -> None:
    put(api, "/queues/mail/limits", concurrency=2, rate=10)
    found = put(api, "/queues/mail/limits", concurrency=None).json()

    assert found["use"]["limit"] == {"rate": 10, "per": 1, "burst": 10}


@pytest.mark.parametrize(
    "body",
    [
        {"concurrency": 0},
        {"concurrency": -1},
        {"concurrency": 1.5},
        {"concurrency": "many"},
        {"rate": 0},
        {"burst": 5},
        {"weight": 2},
        {"ordered": True},
        {"speed": 5},
        {},
        {"reason": "nothing else"},
        {"concurrency": 10**12},
        {"rate": 1, "per": 0},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_and_nothing_is_set(api: Api, body: dict[str, Any]) -> None:
    assert put(api, "/queues/mail/limits", **body).status_code == 422
    assert api.get("/queues/mail/limits").json() == {"queue": "mail", "limited": False, "use": None, "limits": []}


def test_a_group_of_ten_kilobytes_is_refused_everywhere(api: Api) -> None:
    long = "g" * 10_000

    assert put(api, f"/queues/mail/limits/{long}", concurrency=1).status_code == 422
    assert api.post("/jobs", json={"task": "t", "group": long}).status_code == 422
    assert api.post("/jobs", json={"task": "t", "group": ""}).status_code == 422
    assert api.post("/jobs", json={"task": "t", "group": "a\nb"}).status_code == 422
    assert api.get("/jobs", params={"group": long}).status_code == 422


def test_a_job_is_submitted_with_a_group_and_found_by_it(api: Api, db: Driver) -> None:
    limit(db, "mail", "*", concurrency=1)
    mine, _ = api.submit(queue="mail", group="a"), api.submit(queue="mail", group="b")

    [job] = api.get("/jobs", params={"group": "a", "queue": "mail", "state": "queued"}).json()["jobs"]

    assert (job["id"], job["group"], job["in_group"]) == (mine, "a", True)
    assert not job["next_run_at"].startswith("9999")
    assert api.get(f"/jobs/{mine}").json()["group"] == "a"


def test_groups_come_page_by_page(api: Api, db: Driver) -> None:
    limit(db, "mail", "*", concurrency=1)
    for name in ("a", "b", "ü~c"):
        enqueue(db, "mail", name)

    first = api.get("/queues/mail/groups", params={"limit": 2}).json()
    second = api.get("/queues/mail/groups", params={"limit": 2, "after": first["next_cursor"]}).json()

    assert [line["group"] for line in first["groups"] + second["groups"]] == ["a", "b", "ü~c"]
    assert second["next_cursor"] is None
    assert api.get("/queues/mail/groups", params={"after": "nonsense"}).status_code in (400, 422)
    assert api.get("/queues/nobody/groups").json()["groups"] == []


def test_a_key_of_some_queues_sees_and_sets_the_limits_of_those_only(api: Api, db: Driver) -> None:
    limit(db, "secret", "", concurrency=7)
    _, text = new_key(db, "read", "operate", queues=["mail"])
    with Api(api.address, text) as bound:
        assert put(bound, "/queues/mail/limits", concurrency=3).status_code == 200
        assert put(bound, "/queues/secret/limits", concurrency=3).status_code == 404
        assert bound.get("/queues/secret/limits").status_code == 404
        assert bound.get("/queues/secret/groups").status_code == 404
        assert bound.http.delete("/api/v1/queues/secret/limits").status_code == 404
        assert bound.http.get("/queues/secret", headers={"accept": "text/html"}).status_code == 404

    assert api.get("/queues/secret/limits").json()["use"]["limit"] == {"concurrency": 7}


def test_a_key_that_only_reads_sets_nothing(api: Api, db: Driver) -> None:
    _, text = new_key(db, "read")
    with Api(api.address, text) as reader:
        refused(put(reader, "/queues/mail/limits", concurrency=3), 403, "Forbidden")
        refused(reader.http.delete("/api/v1/queues/mail/limits"), 403, "Forbidden")
        assert reader.get("/queues/mail/limits").status_code == 200


def test_the_page_of_a_queue_sets_and_resets_a_limit(site: Site, db: Driver) -> None:
    assert "No limits." in site.page("/queues/mail").text
    done = site.send("/queues/mail", "/queues/limits/set", of="queue", concurrency="2", rate="5", reason="they asked")
    site.send("/queues/mail", "/queues/limits/set", of="one", group="a", weight="3")
    enqueue(db, "mail", "a", 4)
    enqueue(db, "mail", "<b>", 1)
    claim(db, "mail", 9)

    page = site.page("/queues/mail")

    assert done.status_code == 303, done.text
    assert "2 at once, 5/s (burst 5)" in page.text
    assert "they asked" in page.text
    assert "weight 3" in page.text
    assert "2 of 2" in " ".join(page.text.split())
    assert "<b>" in page.text

    site.send("/queues/mail", "/queues/limits/reset", of="queue", group="")
    assert "2 at once" not in site.page("/queues/mail").text


@pytest.mark.parametrize("fields", [{"concurrency": "0"}, {"concurrency": "x"}, {"weight": "2"}, {}, {"group": "g" * 300}])
def test_the_form_refuses_what_makes_no_sense(site: Site, fields: dict[str, str]) -> None:
    of = "one" if "group" in fields else "queue"
    assert site.send("/queues/mail", "/queues/limits/set", of=of, **fields).status_code == 422


def test_the_page_of_a_job_says_its_group_and_what_it_waits_for(site: Site, db: Driver) -> None:
    limit(db, "mail", "", concurrency=1)
    enqueue(db, "mail", "tenant-7", 2)
    [held] = claim(db, "mail", 5)
    row = db.connection.execute("select id from faultline.open_jobs where in_group").fetchone()
    assert row is not None

    holder, waiter = (site.page(f"/jobs/{job}").text for job in (held[0], row[0]))

    assert "Holds a permit of its queue and its group" in holder
    assert "Waits for a permit of the queue (1 of 1 are held)" in waiter
    assert "tenant-7" in waiter
    assert "9999" not in waiter
    assert "tenant-7" in site.page("/jobs?queue=mail&state=queued").text


def test_budgets_are_set_read_and_reset_with_who_and_why(api: Api, db: Driver) -> None:
    done = put(api, "/budgets/openai", rate=600, per=60, burst=50, reason="they asked")

    assert done.status_code == 200, done.text
    [found] = api.get("/budgets").json()["budgets"]
    assert (found["name"], found["tokens"], found["line_seconds"]) == ("openai", 50, 0)
    assert found["effective"] == {"rate": 600, "per": 60, "burst": 50}
    assert "test (API key" in found["changed_by"]
    assert api.http.delete("/api/v1/budgets/openai").json() == {"budgets": []}
    journal = db.execute("select detail ->> 'budget', detail ->> 'reason' from faultline.journal order by id")
    assert [row for row in journal if row[0]] == [("openai", "they asked"), ("openai", None)]


def test_a_queue_with_limits_is_on_the_page_before_its_first_job(site: Site, db: Driver) -> None:
    limit(db, "mail", "", concurrency=2)

    page = site.page("/queues")

    assert "With limits, and without a job so far: mail" in page.text
    assert [link["href"] for link in page.of("a") if link["href"] == "/queues/mail"] != []
    enqueue(db, "mail", "a", 1)
    db.sample()
    assert "without a job so far" not in site.page("/queues").text


def test_the_page_of_queues_shows_budgets(site: Site, db: Driver) -> None:
    db.value("select faultline.set_budget('openai', '{\"rate\": 600, \"per\": 60, \"burst\": 50}', 'ada', 'they asked')")

    page = site.page("/queues")

    for text in ("openai", "600/min (burst 50)", "ada: they asked"):
        assert text in page.text


def orphaned(db: Driver, name: str, *, in_code: bool = False) -> None:
    """A budget that code has declared, and a worker that runs with other code."""
    db.value("select faultline.declare_budget(%s, '{\"rate\": 5}')", name)
    db.value("select faultline.heartbeat('w', 'here', 1, '1', array['mail'])::text")
    assert db.value("select faultline.announce('w', '{}', 1, '{}', %s)", [name] if in_code else ["another"])


def test_an_orphaned_budget_is_shown_as_such_and_removed(api: Api, db: Driver) -> None:
    orphaned(db, "openai")

    [found] = api.get("/budgets").json()["budgets"]
    gone = api.http.delete("/api/v1/budgets/openai", params={"reason": "moved away"})

    assert found["orphaned"] is True
    assert gone.json() == {"budgets": []}
    journal = db.execute(
        "select detail -> 'is', detail -> 'by_code', detail ->> 'reason' from faultline.journal order by id"
    )
    assert journal[-1] == ({}, False, "moved away")


def test_what_was_set_is_taken_back_before_an_orphaned_budget_is_removed(api: Api, db: Driver) -> None:
    orphaned(db, "openai")
    put(api, "/budgets/openai", rate=7)
    [found] = api.get("/budgets").json()["budgets"]

    [left] = api.http.delete("/api/v1/budgets/openai").json()["budgets"]

    assert (found["orphaned"], left["orphaned"], left["effective"]["rate"]) == (False, True, 5)


def test_a_budget_that_a_living_worker_may_have_in_its_code_is_not_removed(api: Api, db: Driver) -> None:
    orphaned(db, "openai", in_code=True)
    [found] = api.http.delete("/api/v1/budgets/openai").json()["budgets"]
    assert found["orphaned"] is False

    # It has just started, and has not said what it has.
    db.execute("update faultline.workers set budgets = null")
    [found] = api.http.delete("/api/v1/budgets/openai").json()["budgets"]
    assert found["orphaned"] is False

    # All workers stand still, for a deployment perhaps.
    db.execute("delete from faultline.workers")
    [found] = api.http.delete("/api/v1/budgets/openai").json()["budgets"]
    assert found["orphaned"] is False


def test_a_budget_is_set_reset_and_removed_on_the_page_with_who_and_why(site: Site, db: Driver) -> None:
    orphaned(db, "openai")

    shown = site.page("/queues").text
    site.send("/queues", "/budgets/set", budget="openai", rate="600", per="60", burst="50", reason="they asked")
    is_set = site.page("/queues").text
    site.send("/queues", "/budgets/reset", budget="openai", reason="over")
    undone = db.value("select effective from faultline.budgets")
    site.send("/queues", "/budgets/reset", budget="openai", reason="moved away")

    assert "orphaned" in shown
    assert "600/min (burst 50)" in is_set
    assert "they asked" in is_set
    assert undone["rate"] == 5
    assert db.value("select count(*) from faultline.budgets") == 0
    done = db.execute("select detail ->> 'reason' from faultline.journal where detail ->> 'by_code' = 'false' order by id")
    assert [reason for (reason,) in done] == ["they asked", "over", "moved away"]


@pytest.mark.parametrize("fields", [{}, {"rate": "many"}, {"rate": "0"}, {"rate": "nan"}, {"rate": "1", "burst": "0"}])
def test_a_budget_that_makes_no_sense_is_refused_on_the_page(site: Site, db: Driver, fields: dict[str, str]) -> None:
    db.value("select faultline.declare_budget('openai', '{\"rate\": 5}')")

    assert site.send("/queues", "/budgets/set", budget="openai", **fields).status_code == 422
    assert db.value("select override from faultline.budgets") == {}


@pytest.mark.parametrize("body", [{}, {"rate": 0}, {"rate": 1, "burst": 0}, {"rate": 1, "concurrency": 1}, {"rate": None}])
def test_a_budget_without_a_rate_is_refused(api: Api, body: dict[str, Any]) -> None:
    assert put(api, "/budgets/openai", **body).status_code == 422
    assert api.get("/budgets").json() == {"budgets": []}


@pytest.mark.parametrize(
    ("given", "per", "burst"),
    [
        # Lower: what may start at once goes down with it, and the unit stays.
        ({"rate": 100}, 60, 4),
        ({"rate": 1200}, 60, 20),
        ({"rate": 100, "burst": 50}, 60, 50),
        ({"rate": 5, "per": 1}, 1, 10),
        ({"rate": 0.6}, 60, 1),
    ],
)
def test_a_rate_that_is_set_keeps_the_time_and_the_burst_in_force(
    api: Api, db: Driver, given: dict[str, float], per: float, burst: float
) -> None:
    rate = '{"rate": 600, "per": 60, "burst": 20}'
    db.execute(f"select faultline.declare_queue('mail', '{{\"queue\": {rate}, \"each_group\": {rate}}}')")
    db.execute(f"select faultline.declare_budget('openai', '{rate}')")
    wanted = {"rate": given["rate"], "per": per, "burst": burst}

    put(api, "/queues/mail/limits", **given)
    put(api, "/queues/mail/limits/tenant-7", **given)
    put(api, "/budgets/openai", **given)

    found = {one["group"]: one["effective"] for one in api.get("/queues/mail/limits").json()["limits"]}
    assert found[""] == found["tenant-7"] == wanted
    assert api.get("/budgets").json()["budgets"][0]["effective"] == wanted


def test_a_rate_where_none_is_in_force_is_per_second(api: Api) -> None:
    put(api, "/queues/mail/limits", rate=7)
    assert api.get("/queues/mail/limits").json()["limits"][0]["effective"] == {"rate": 7, "per": 1, "burst": 7}


def test_a_key_of_some_queues_neither_sees_nor_sets_budgets(api: Api, db: Driver) -> None:
    put(api, "/budgets/openai", rate=1)
    _, text = new_key(db, "read", "operate", queues=["mail"])
    with Api(api.address, text) as bound:
        refused(bound.get("/budgets"), 403, "Forbidden")
        refused(put(bound, "/budgets/openai", rate=2), 403, "Forbidden")
        refused(bound.http.delete("/api/v1/budgets/openai"), 403, "Forbidden")
    assert api.get("/budgets").json()["budgets"][0]["effective"]["rate"] == 1


def test_a_form_that_is_refused_says_what_is_wrong_with_the_limit(site: Site) -> None:
    page = site.send("/queues/mail", "/queues/limits/set", of="queue", concurrency="0")

    assert page.status_code == 422
    assert "Limit refused" in page.text
    assert "concurrency must be a whole number" in page.text
    assert "the form still has what you entered" in page.text
    assert "Correct the job" not in page.text


def test_a_job_that_waits_for_a_budget_says_so(site: Site, db: Driver) -> None:
    db.execute('select faultline.declare_budget(\'openai\', \'{"rate": 60, "per": 60, "burst": 100}\')')
    job_id = db.enqueue(queue="llm")
    lease = db.claim_one(queue="llm")
    held = (lease.job_id, lease.fencing_token, lease.owner)
    for number in (1, 2):
        db.execute("select faultline.take_budget(%s, %s, %s, 'openai', 90, %s)", *held, number)
    db.execute("select faultline.release(array[%s]::uuid[], array[%s]::bigint[], array[%s], array[80])", *held)

    page = site.page(f"/jobs/{job_id}").text

    assert "Waits for 90 of budget openai (in about " in page
    assert "released it without an error. Probably it snoozed or waits for a budget" in page

"""Flows on pages and over HTTP: trees, what waits, and signals by form and by request."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from faultline import Faultline
from faultline.store import verbs
from faultline.store.reads import flows, views
from faultline.store.verbs import flow, streams
from tests.flow.scenes import asked, begun, done, spawned, suspended
from tests.web.conftest import refused
from tests.web.site import browsed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver
    from tests.web.conftest import Api

NOBODY = "0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"


def kept(db: Driver, job_id: object) -> list[tuple[str, object, str | None]]:
    found = db.run(flows.signals([job_id]))  # type: ignore[list-item]
    return [(signal.name, signal.payload, signal.for_call) for signal in found]


# Over HTTP


def test_a_signal_reaches_its_job_and_the_journal_says_who_sent_it(api: Api, db: Driver) -> None:
    job_id = asked(db)

    answer = api.post(f"/jobs/{job_id}/signals", json={"name": "approval", "payload": {"ok": True}, "for_call": "1"})

    assert (answer.status_code, answer.json()) == (200, {"job_id": str(job_id), "created": True})
    assert kept(db, job_id) == [("approval", {"ok": True}, "1")]
    (entry,) = db.run(views.journal(job_id))
    assert (entry.event, entry.detail["name"]) == ("signalled", "approval")
    assert entry.detail["by"].startswith("test (API key")


def test_a_signal_with_a_key_is_sent_once(api: Api, db: Driver) -> None:
    job_id = asked(db)

    answers = [api.post(f"/jobs/{job_id}/signals", json={"name": "n", "key": "k"}).json() for _ in range(3)]

    assert [answer["created"] for answer in answers] == [True, False, False]
    assert kept(db, job_id) == [("n", None, None)]


def test_a_signal_finds_its_job_by_an_idempotency_key(api: Api, db: Driver) -> None:
    by_python = asked(db, idempotency_key="order:42")
    by_http = api.post("/jobs", json={"task": "t"}, headers={"Idempotency-Key": "order-43"}).json()["id"]

    first = api.post("/signals", json={"idempotency_key": "order:42", "name": "paid", "payload": 7})
    second = api.post("/signals", json={"idempotency_key": "order-43", "name": "paid"})

    assert first.json() == {"job_id": str(by_python), "created": True}
    assert second.json() == {"job_id": by_http, "created": True}
    assert kept(db, by_python) == [("paid", 7, None)]
    refused(api.post("/signals", json={"idempotency_key": "none", "name": "paid"}), 404, "JobNotFound")


def test_signals_to_unknown_and_ended_jobs_and_to_waits_that_are_over_are_refused(api: Api, db: Driver) -> None:
    ended = db.new_lease()
    db.complete(ended)
    job_id = asked(db)

    refused(api.post(f"/jobs/{NOBODY}/signals", json={"name": "n"}), 404, "JobNotFound")
    refused(api.post(f"/jobs/{ended.job_id}/signals", json={"name": "n"}), 409, "IllegalTransition")
    refused(api.post(f"/jobs/{job_id}/signals", json={"name": "approval", "for_call": "2"}), 404, "JobNotFound")
    refused(api.post(f"/jobs/{job_id}/signals", json={"name": "other", "for_call": "1"}), 409, "IllegalTransition")
    refused(api.post("/jobs/x/signals", json={"name": "n"}), 404, "JobNotFound")
    refused(api.post("/jobs/x/fork"), 404, "JobNotFound")
    assert kept(db, job_id) == []


@pytest.mark.parametrize(
    "bad",
    [
        "{}",
        '{"name": ""}',
        f'{{"name": "{"n" * 201}"}}',
        r'{"name": "a\u0000"}',
        r'{"name": "a\u0007"}',
        r'{"name": "a\ud800"}',
        r'{"name": "n", "key": "\n"}',
        '{"name": "n", "key": ""}',
        '{"name": "n", "for_call": "x"}',
        f'{{"name": "n", "for_call": "{"1" * 201}"}}',
        '{"name": "n", "more": 1}',
    ],
)
def test_a_signal_that_no_job_could_receive_is_refused_before_the_database_is_asked(api: Api, db: Driver, bad: str) -> None:
    job_id = asked(db)

    answer = api.post(f"/jobs/{job_id}/signals", content=bad, headers={"Content-Type": "application/json"})

    assert refused(answer, 422, "InvalidRequest")["errors"]
    assert kept(db, job_id) == []


@pytest.mark.parametrize("payload", [r'"\u0000"', r'{"a": ["\ud800"]}', r'{"\u0000": 1}'])
def test_a_payload_that_cannot_be_stored_is_refused(api: Api, db: Driver, payload: str) -> None:
    job_id = asked(db)
    content = f'{{"name": "n", "payload": {payload}}}'

    answer = api.post(f"/jobs/{job_id}/signals", content=content, headers={"Content-Type": "application/json"})

    refused(answer, 422, "JobRejected")
    assert kept(db, job_id) == []


def test_only_a_key_with_the_scope_and_the_queue_sends_signals_and_sees_flows(
    caller: Callable[..., Api], db: Driver
) -> None:
    job_id = asked(db, idempotency_key="k")
    reader, other = caller("read"), caller("operate", "read", queues=["other"])

    refused(reader.post(f"/jobs/{job_id}/signals", json={"name": "n"}), 403, "Forbidden")
    refused(reader.post("/signals", json={"idempotency_key": "k", "name": "n"}), 403, "Forbidden")
    refused(other.post(f"/jobs/{job_id}/signals", json={"name": "n"}), 404, "JobNotFound")
    refused(other.post("/signals", json={"idempotency_key": "k", "name": "n"}), 404, "JobNotFound")
    refused(other.get(f"/jobs/{job_id}/flow"), 404, "JobNotFound")
    assert other.get("/waiting").json() == {"waiting": [], "next_cursor": None}
    assert reader.get("/waiting").json()["waiting"][0]["job_id"] == str(job_id)
    assert kept(db, job_id) == []


def test_a_flow_is_read_with_its_calls_children_and_signals(api: Api, db: Driver) -> None:
    lease = begun(db)
    done(db, lease, "1", result={"text": "…"})
    spawned(db, lease, "2", 2)
    suspended(db, lease, "2", kind="children", name="part")
    api.post(f"/jobs/{lease.job_id}/signals", json={"name": "extra"})

    found = api.get(f"/jobs/{lease.job_id}/flow").json()

    assert (found["job_id"], found["flow_id"], found["is_cut"]) == (str(lease.job_id), str(lease.job_id), False)
    assert [(call["number"], call["kind"], call["result"]) for call in found["calls"]] == [
        ("1", "step", {"text": "…"}),
        ("2", "children", None),
    ]
    assert found["children"][0]["cells"] == "qq"
    assert [job["depth"] for job in found["jobs"]] == [0, 1, 1]
    assert found["signals"][0]["name"] == "extra"
    assert api.get(f"/jobs/{lease.job_id}").json()["suspended"] is True


def test_what_waits_is_listed_in_pages(api: Api, db: Driver) -> None:
    jobs = [str(asked(db, name=f"n/{number} ü")) for number in range(3)]

    first = api.get("/waiting", params={"kind": "signal", "limit": 2}).json()
    second = api.get("/waiting", params={"kind": "signal", "limit": 2, "cursor": first["next_cursor"]}).json()

    assert [wait["job_id"] for wait in first["waiting"] + second["waiting"]] == jobs
    assert second["next_cursor"] is None
    assert api.get("/waiting", params={"name": "n/1 ü"}).json()["waiting"][0]["job_id"] == jobs[1]
    refused(api.get("/waiting", params={"cursor": first["next_cursor"]}), 409, "OtherList")
    for bad in ("signal~ff~0~1", "signal~000000~0~1", "signal~00d800~0~1", "signal~110000~0~1"):
        refused(api.get("/waiting", params={"kind": "signal", "cursor": bad}), 422, "InvalidRequest")
    refused(api.get("/waiting", params={"kind": "nonsense"}), 422, "InvalidRequest")


def test_a_fork_is_a_new_job_with_the_calls_before_and_the_journal_says_who_made_it(api: Api, db: Driver) -> None:
    lease = begun(db)
    done(db, lease, "1", result={"text": "…"})
    done(db, lease, "2")

    answer = api.post(f"/jobs/{lease.job_id}/fork", json={"before": "2", "args": {"n": 2}, "reason": "a look"})

    assert (answer.status_code, answer.json()["forked_from"]) == (201, str(lease.job_id))
    forked = answer.json()["id"]
    assert [call["number"] for call in api.get(f"/jobs/{forked}/flow").json()["calls"]] == ["1"]
    assert api.get(f"/jobs/{forked}").json()["args"] == {"n": 2}
    (entry,) = [one for one in db.run(views.journal(lease.job_id)) if one.event == "forked"]
    assert (entry.detail["into"], entry.detail["reason"]) == (forked, "a look")
    assert entry.detail["by"].startswith("test (API key")
    assert api.post(f"/jobs/{lease.job_id}/fork").status_code == 201


def test_a_fork_that_makes_no_sense_or_is_not_allowed_is_refused(api: Api, caller: Callable[..., Api], db: Driver) -> None:
    lease = begun(db)
    done(db, lease, "1")
    path = f"/jobs/{lease.job_id}/fork"

    refused(api.post(path, json={"before": "7"}), 404, "JobNotFound")
    refused(api.post(f"/jobs/{NOBODY}/fork"), 404, "JobNotFound")
    for bad in ({"before": "x"}, {"args": [1]}, {"more": 1}):
        refused(api.post(path, json=bad), 422, "InvalidRequest")
    refused(caller("read").post(path), 403, "Forbidden")
    refused(caller("operate", "read", queues=["other"]).post(path), 404, "JobNotFound")
    assert db.value("select count(*) from faultline.jobs") == 1


# On pages


def test_the_page_of_a_job_shows_its_tree_and_what_it_waits_for(dsn: str, queue: Driver) -> None:
    lease = begun(queue)
    done(queue, lease, "1", name="<b>draft</b>", result={"text": "…"}, tries=3)
    spawned(queue, lease, "2", 60)
    suspended(queue, lease, "3", name="approval")

    with browsed(dsn) as site:
        page = site.page(f"/jobs/{lease.job_id}")
        listed = site.page("/jobs?task=article")

    assert "waiting for the signal approval" in page.text
    assert "1 step <b>draft</b> 3 tries" in page.text
    assert "0 of 60 ended, 60 queued" in page.text
    assert len([cell for cell in page.of("rect") if "cell" in (cell.get("class") or "")]) == 60
    assert any(bar.get("class") == "hatched" for bar in page.of("rect"))
    assert "Meanwhile it holds no lease and no worker." in page.text
    assert "Cancel job and its children" in page.text
    assert "waiting" in listed.text


def test_a_graph_is_shown_by_its_name_and_those_of_its_jobs(dsn: str) -> None:
    with Faultline(dsn) as app:
        extract = app.task(name="extract")(lambda: None)
        with app.flow("nightly") as flow:
            flow.add(extract, after=[flow.add(extract, name="north <b>")])
            root = flow.enqueue()

    with browsed(dsn) as site:
        page = site.page(f"/jobs/{root.id}")

    assert "north <b>" in page.text
    assert "<h1>nightly</h1>" in page.html
    assert "after after" not in page.text


def test_a_plain_job_has_no_tree(dsn: str, queue: Driver) -> None:
    job_id = queue.enqueue()

    with browsed(dsn) as site:
        assert 'id="flow"' not in site.page(f"/jobs/{job_id}").html


def test_a_signal_is_sent_from_the_page_of_its_job_to_the_wait_that_the_page_shows(dsn: str, queue: Driver) -> None:
    job_id = asked(queue)

    with browsed(dsn) as site:
        answer = site.send(f"/jobs/{job_id}", f"/jobs/{job_id}/signals", payload='{"ok": true}')
        assert answer.headers["location"] == f"/jobs/{job_id}?said=signalled"
        page = site.page(f"/jobs/{job_id}?said=signalled")

    assert kept(queue, job_id) == [("approval", {"ok": True}, "1")]
    assert "Sent. A job that waits for it goes on at once." in page.text
    assert "signalled" in page.text
    assert any(mark.get("class") == "mark-signal" for mark in page.of("svg"))


def test_the_inbox_has_a_form_for_each_signal_that_is_waited_for(dsn: str, queue: Driver) -> None:
    asked(queue, name="other")
    job_id = asked(queue, name="<i>approval</i>")
    suspended(queue, begun(queue), "1", kind="sleep", name="sleep")

    with browsed(dsn) as site:
        page = site.page("/waiting")
        named = site.page("/waiting?name=%3Ci%3Eapproval%3C%2Fi%3E")
        everything = site.page("/waiting?kind=all")
        empty = site.send("/waiting", f"/jobs/{job_id}/signals", payload=" ")
        answer = site.send("/waiting", f"/jobs/{job_id}/signals", payload="null")
        wrong = site.send("/waiting", f"/jobs/{job_id}/signals", payload="yes")

    assert "2 waits" in page.text
    assert "1 wait" in named.text
    assert "3 waits" in everything.text
    assert answer.headers["location"] == "/waiting?said=signalled"
    assert (empty.status_code, "The payload is empty; nothing was sent." in empty.text) == (422, True)
    assert (wrong.status_code, "not JSON" in wrong.text) == (422, True)
    assert kept(queue, job_id) == [("<i>approval</i>", None, "1")]


def test_whoever_answers_sees_the_arguments_of_the_job(dsn: str, queue: Driver) -> None:
    job_id = asked(queue, args={"topic": "<b>rain</b>", "long": "x" * 5000})

    with browsed(dsn) as site:
        inbox, page = site.page("/waiting"), site.page(f"/jobs/{job_id}")

    assert "<b>rain</b>" in inbox.text
    assert "<b>rain</b>" in page.text
    assert "x" * 200 not in inbox.text


def test_the_page_of_a_job_says_that_its_program_has_changed_and_what_to_do(dsn: str, queue: Driver) -> None:
    lease = begun(queue)
    done(queue, lease, "1")
    queue.run(verbs.program_changed(lease, "c", "the program has changed: call 2 was <b>. Bring the old code back"))
    queue.run(verbs.release([lease], [5.0]))

    with browsed(dsn) as site:
        page = site.page(f"/jobs/{lease.job_id}")

    assert "It does not go on since" in page.text
    assert "the program has changed: call 2 was <b>. Bring the old code back" in page.text
    assert "does not record by whom" not in page.text


def test_a_form_without_its_token_sends_nothing(dsn: str, queue: Driver) -> None:
    job_id = asked(queue)

    with browsed(dsn) as site:
        answer = site.post(f"/jobs/{job_id}/signals", {"name": "approval"})

    assert answer.status_code == 403
    assert kept(queue, job_id) == []


@pytest.mark.parametrize("state", ["cancelled", "succeeded"])
def test_a_flow_that_has_ended_offers_no_form(dsn: str, queue: Driver, state: str) -> None:
    lease = begun(queue)
    done(queue, lease, "1")
    if state == "succeeded":
        queue.complete(lease)
    else:
        suspended(queue, lease, "2")
        queue.run(verbs.cancel(lease.job_id))

    with browsed(dsn) as site:
        page = site.page(f"/jobs/{lease.job_id}")

    assert "Waits for a signal" not in page.text
    assert f"article {state}" in page.text or state in page.text


def test_a_stream_is_followed_until_its_job_ends_and_begins_anew_with_a_later_attempt(api: Api, db: Driver) -> None:
    first = db.new_lease()
    db.run(streams.stream(first, "tokens", 0, '["a", "b"]'))
    db.fail(first)
    second = db.claim_one()
    db.run(streams.stream(second, "tokens", 0, '["c"]'))
    db.complete(second)

    answer = api.get(f"/jobs/{first.job_id}/stream", params={"name": "tokens"})
    where = answer.text.split("id: ")[1].split("\n")[0]
    rest = api.get(f"/jobs/{first.job_id}/stream", params={"name": "tokens"}, headers={"Last-Event-ID": where})

    assert answer.headers["content-type"].startswith("text/event-stream")
    told = [(part.split("event: ")[1].split("\n")[0], part.split("data: ")[1]) for part in answer.text.strip().split("\n\n")]
    assert told[-2:] == [("chunk", '["c"]'), ("end", '{"reason":"succeeded"}')]
    assert rest.text.endswith('event: end\ndata: {"reason":"succeeded"}\n\n')
    refused(api.get(f"/jobs/{NOBODY}/stream", params={"name": "tokens"}), 404, "JobNotFound")


def test_only_an_attempt_that_writes_again_resets_a_stream(api: Api, db: Driver) -> None:
    first = db.new_lease(max_attempts=5)
    db.run(streams.stream(first, "tokens", 0, '["a", "b"]'))
    db.run(flow.record(first, [{"number": "1", "kind": "step", "name": "s", "outcome": "done"}]))
    db.release(first)
    second = db.claim_one()
    db.run(streams.stream(second, "tokens", 0, '["c", "d"]', '{"": 1}'))
    db.fail(second)
    third = db.claim_one()
    db.run(streams.stream(third, "tokens", 0, '["e"]', '{"": 1}'))
    db.complete(third)

    def read_behind(where: str) -> list[tuple[str, str]]:
        path = f"/jobs/{first.job_id}/stream"
        text = api.get(path, params={"name": "tokens"}, headers={"Last-Event-ID": where}).text.strip()
        return [(part.split("event: ")[1].split("\n")[0], part.split("data: ")[1]) for part in text.split("\n\n")]

    end = ("end", '{"reason":"succeeded"}')
    assert read_behind(f"{first.fencing_token}p0p2") == [("chunk", '["e"]'), end]
    assert read_behind(f"{second.fencing_token}p2p4") == [("reset", '{"kept":2}'), ("chunk", '["e"]'), end]


def test_a_job_is_forked_from_a_call_on_its_page(dsn: str, queue: Driver) -> None:
    lease = begun(queue)
    done(queue, lease, "1")
    done(queue, lease, "2", name="publish")

    with browsed(dsn) as site:
        page = site.page(f"/jobs/{lease.job_id}")
        answer = site.send(f"/jobs/{lease.job_id}", f"/jobs/{lease.job_id}/fork", before="2", reason="a look")
        forked = answer.headers["location"].removeprefix("/jobs/").removesuffix("?said=forked")
        said = site.page(f"/jobs/{forked}?said=forked")
        original = site.page(f"/jobs/{lease.job_id}")

    assert page.text.count("Fork from here") == 2
    assert [call.number for call in queue.run(verbs.history(UUID(forked)))] == ["1"]
    assert "This is the new job" in said.text
    assert f'href="/jobs/{lease.job_id}"' in said.html
    assert f'href="/jobs/{forked}"' in original.html
    assert "a look" in original.text

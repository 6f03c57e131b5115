"""Topics: what a publish enqueues, for whom, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.store.verbs import topics
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions

_PAYLOAD = '{"order": 42, "sum": 1e16}'


@probe("publish", "subscribe")
def a_published_topic_enqueues_a_job_for_every_subscribed_task(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.run(topics.subscribe("order.paid", "b", {"queue": "mail", "max_attempts": 2, "lease_seconds": 7.5}, None))
        q.run(topics.subscribe("order.paid", "a", {}, ["order"]))
        q.run(topics.subscribe("order.lost", "c", {}, None))
        published = q.run(topics.publish("order.paid", _PAYLOAD))
        expect(
            "tasks", [(one.task, one.queue, one.created) for one in published], [("a", "default", True), ("b", "mail", True)]
        )
        first, second = (q.job(one.job_id) for one in published)
        expect("fields that it takes", first.args, {"order": 42})
        # The text, not the value: 1e16 would come back as an integer.
        stored = q.value("select args::text from faultline.jobs where id = %s", second.id)
        expect("all fields", stored, _PAYLOAD)
        expect("options", (second.queue, second.max_attempts), ("mail", 2))


@probe("publish")
def a_topic_that_nobody_has_subscribed_to_enqueues_nothing(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.run(topics.subscribe("order.paid", "a", {}, None))
        expect("published", q.run(topics.publish("order", "{}")), [])
        expect("jobs", q.value("select count(*) from faultline.jobs"), 0)


@probe("publish")
def a_publish_commits_and_is_rolled_back_with_its_transaction(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    q.run(topics.subscribe("order.paid", "a", {}, None))
    q.begin()
    q.run(topics.publish("order.paid", "{}", appears_late=True))
    expect("before the commit", other.value("select count(*) from faultline.jobs"), 0)
    q.rollback()
    expect("rolled back", q.value("select count(*) from faultline.jobs"), 0)
    q.run(topics.publish("order.paid", "{}"))
    expect("committed", other.value("select count(*) from faultline.jobs"), 1)


@probe("publish")
def the_same_key_is_published_once_for_each_task(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.run(topics.subscribe("order.paid", "a", {}, None))
        first = q.run(topics.publish("order.paid", _PAYLOAD, idempotency_key="42"))
        q.run(topics.subscribe("order.paid", "b", {}, None))
        again = q.run(topics.publish("order.paid", _PAYLOAD, idempotency_key="42"))
        expect("the first", [one.created for one in first], [True])
        expect("again", [(one.task, one.created) for one in again], [("a", False), ("b", True)])
        expect("the same job", again[0].job_id, first[0].job_id)
        with refused(q, "FL003", what="the same key with another payload"):
            q.run(topics.publish("order.paid", "{}", idempotency_key="42"))


@probe("publish")
def a_publish_that_is_sent_again_gives_the_same_jobs(sessions: Sessions) -> None:
    q = sessions.open()
    own = UUID("019a0000-0000-7000-8000-0123456789ab")
    with q.unsaved():
        for task in ("a", "b"):
            q.run(topics.subscribe("order.paid", task, {}, None))
        first, again = (q.run(topics.publish("order.paid", _PAYLOAD, id=own)) for _ in range(2))
        expect("new", [one.created for one in (*first, *again)], [True, True, False, False])
        expect("the same", [one.job_id for one in again], [one.job_id for one in first])
        expect("jobs", len({one.job_id for one in first}), 2)


@probe("publish")
def a_payload_that_is_no_object_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.run(topics.subscribe("order.paid", "a", {}, None))
        for payload in ("[1]", '"text"', "null", '{"a": "\\u0000"}', "{"):
            with refused(q, "FL005", "order.paid", what=payload):
                q.run(topics.publish("order.paid", payload))


@probe("subscribe", "unsubscribe", "signature")
def a_subscription_is_told_when_it_changes_and_not_otherwise(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        changed = [q.run(topics.subscribe("t", "a", options, takes, reason="r", by="me")) for options, takes in _CHANGES]
        expect("changed", changed, [True, False, True, True])
        ended = [q.run(topics.unsubscribe("t", "a", by="me")) for _ in range(2)]
        expect("ended", ended, [True, False])
        told = q.execute(
            "select event, detail ->> 'topic', detail ->> 'task', detail ->> 'by' from faultline.journal order by id"
        )
        expect("told", told, [("subscribed", "t", "a", "me")] * 3 + [("unsubscribed", "t", "a", "me")])
        expect("published", q.run(topics.publish("t", "{}")), [])


@probe("unsubscribe")
def one_subscription_is_ended_and_no_other(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for topic, task in (("t", "a"), ("t", "b"), ("u", "a")):
            q.run(topics.subscribe(topic, task, {}, None))
        expect("ended", q.run(topics.unsubscribe("t", "a")), True)
        left = q.execute("select topic, task::text from faultline.subscriptions order by 1, 2")
        expect("left", left, [("t", "b"), ("u", "a")])


@probe("subscribe")
def who_finds_what_he_would_write_waits_for_nobody(sessions: Sessions) -> None:
    """Many workers start at once, and each subscribes its tasks."""
    q, other = sessions.open(), sessions.open()
    q.run(topics.subscribe("t", "a", {}, None))
    other.begin()
    other.execute("select from faultline.subscriptions for update")
    expect("changed", sessions.at_once(q, lambda s: s.run(topics.subscribe("t", "a", {}, None))), False)
    other.rollback()


_CHANGES = [({}, None), ({}, None), ({"queue": "mail"}, None), ({"queue": "mail"}, ["order"])]


@probe("subscribe")
def a_subscription_that_could_not_enqueue_a_job_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        bad: tuple[dict[str, Any], ...] = (
            {"queue": ""},
            {"priority": 5000},
            {"no": 1},
            {"idempotency_key": "k"},
            {"args": {}},
            {"task": "b"},
        )
        for options in bad:
            with refused(q, "FL005", what=str(options)):
                q.run(topics.subscribe("t", "a", options, None))
        for topic in ("", " t", "t\n", "t" * 201):
            with refused(q, "FL005", "topic", what=topic):
                q.run(topics.subscribe(topic, "a", {}, None))
        expect("subscriptions", q.run(topics.subscriptions()), [])

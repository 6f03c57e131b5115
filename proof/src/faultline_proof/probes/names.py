"""Names: people can read and type what something is called, and nothing is done in silence to what has no name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline_proof.sessions import Sessions

#: They control a terminal, or hide or reorder text.
HIDING = ("a\x01b", "a\nb", "a\x7fb", "a\x9bb", "a\u061cb", "a\u200eb", "a\u2028b", "a\u202eb", "a\u2066b")
_LEASE = "%(id)s, %(token)s, %(owner)s"
#: Each makes something of this name.
_NAMING = {
    "pause": "select faultline.pause(%(name)s)",
    "limit_queue": "select faultline.set_limit(%(name)s, '', '{\"concurrency\": 1}')",
    "limited_one": "select faultline.set_limit('default', %(name)s, '{\"concurrency\": 1}')",
    "set_budget": "select faultline.set_budget(%(name)s, '{\"rate\": 1}')",
    "subscribe": "select faultline.subscribe(%(name)s, 't')",
    "publish": "select faultline.publish(%(name)s)",
    "set_schedule": 'select faultline.set_schedule(%(name)s, \'{"every": 60, "job": {"task": "t"}}\')',
    "enqueue": "select faultline.enqueue('t', '{}', queue => %(name)s)",
    "enqueue of a group": "select faultline.enqueue('t', '{}', \"group\" => %(name)s)",
    "enqueue_many": "select faultline.enqueue_many("
    "json_build_array(json_build_object('task', 't', 'queue', %(name)s::text)))",
    "signal": "select faultline.signal(%(id)s, %(name)s)",
    "key of a signal": "select faultline.signal(%(id)s, 's', key => %(name)s)",
    "receive": f"select faultline.receive({_LEASE}, '1', %(name)s)",
    "record": f"select faultline.record({_LEASE}, jsonb_build_array(jsonb_build_object("
    "'number', '1', 'kind', 'step', 'name', %(name)s::text)))",
    "watch": f"select faultline.watch({_LEASE}, '1', %(name)s, null, 'raise', array[%(other)s::uuid])",
    "suspend": "select faultline.suspend(array[%(id)s]::uuid[], array[%(token)s]::bigint[], array[%(owner)s],"
    " jsonb_build_array(jsonb_build_array(jsonb_build_object('number', '1', 'kind', 'signal', 'name', %(name)s::text))))",
    "step": f"select faultline.step({_LEASE}, %(name)s)",
    "stream": f"select faultline.stream({_LEASE}, %(name)s, 0, '[1]')",
    "add_api_key": "select faultline.add_api_key(gen_random_uuid(), sha256('k'), %(name)s, array['read'])",
}
#: Also without white space at either end.
_TRIMMED = ("pause", "limit_queue", "subscribe", "publish", "set_schedule", "enqueue", "enqueue_many", "add_api_key")
#: Each is about something of this name.
_NAMED = {
    "pause": _NAMING["pause"],
    "resume": "select faultline.resume(%(name)s)",
    "publish": _NAMING["publish"],
    "subscribe": _NAMING["subscribe"],
    "unsubscribe": "select faultline.unsubscribe(%(name)s, 't')",
    "unsubscribe of a task": "select faultline.unsubscribe('t', %(name)s)",
    "remove_schedule": "select faultline.remove_schedule(%(name)s)",
    "set_budget": "select faultline.set_budget(%(name)s, null)",
    "declare_budget": "select faultline.declare_budget(%(name)s, '{\"rate\": 1}')",
    "limit_queue": _NAMING["limit_queue"],
    "set_schedule": _NAMING["set_schedule"],
    "stream": _NAMING["stream"],
    "step": _NAMING["step"],
    "receive": _NAMING["receive"],
    "watch": _NAMING["watch"],
    "suspend": _NAMING["suspend"],
    "add_api_key": _NAMING["add_api_key"],
}


def _all_refused(sessions: Sessions, verbs: dict[str, str], names: Sequence[str | None], *texts: str) -> None:
    q = sessions.open()
    lease = q.new_lease()
    held = {"id": lease.job_id, "token": lease.fencing_token, "owner": lease.owner, "other": q.enqueue()}
    for verb, statement in verbs.items():
        for name in names:
            with refused(q, "FL005", *texts, what=f"{verb} of {name!r}"):
                q.connection.execute(statement.encode(), {**held, "name": name})


@probe(
    "is_unreadable",
    "check_name",
    *(verb for verb in _NAMING if " " not in verb),
    "checked_budget",
    "check_schedule",
    "parse_new_jobs",
)
def no_name_hides_or_reorders_text(sessions: Sessions) -> None:
    _all_refused(sessions, _NAMING, HIDING, "control characters")


@probe("is_unreadable", "check_name", *_TRIMMED, "parse_new_jobs")
def no_name_of_what_people_type_ends_with_white_space(sessions: Sessions) -> None:
    _all_refused(sessions, {verb: _NAMING[verb] for verb in _TRIMMED}, (" a", "a ", "\u2003a"), "white space")


@probe("check_name", *(verb for verb in _NAMED if " " not in verb), "checked_budget", "check_schedule")
def what_has_no_name_is_refused_and_not_passed_over(sessions: Sessions) -> None:
    _all_refused(sessions, _NAMED, (None, "", "x" * 201), " must have 1 to ")


@probe("check_name", "resume", "unsubscribe", "remove_schedule")
def what_was_named_before_there_was_this_rule_can_be_ended(sessions: Sessions) -> None:
    q = sessions.open()
    name = HIDING[-1]
    with q.unsaved():
        q.execute("insert into faultline.queues (name, paused_at) values (%s, now())", name)
        q.execute(
            "insert into faultline.subscriptions (topic, task, options, subscribed_at) values (%s, 't', '{}', now())", name
        )
        expect("resumed", q.execute("select faultline.resume(%s)", name), [(True,)])
        expect("unsubscribed", q.execute("select faultline.unsubscribe(%s, 't')", name), [(True,)])
        expect("removed", q.execute("select faultline.remove_schedule(%s)", name), [(False,)])


@probe("read_jobs", "reject_job", "subscribe")
def a_name_is_text_and_no_number_or_list(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for field in ("task", "queue", "group", "idempotency_key", "digest", "trace", "expires_at", "id"):
            for value in (5, ["a"], {"a": 1}, True):
                job = {"task": "t", field: value}
                with refused(q, "FL005", "job 2 of 2 ", f"its {field} is not text", what=str(job)):
                    q.execute("select faultline.enqueue_many(%s::text)", json.dumps([{"task": "t"}, job]))
        with refused(q, "FL005", "its queue is not text"):
            q.execute("select faultline.subscribe('t', 't', %s)", Jsonb({"queue": 5}))
        expect("jobs", q.execute("select count(*) from faultline.jobs"), [(0,)])

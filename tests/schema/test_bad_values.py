"""What the functions of the schema say to values that make no sense: an answer, or an error of Faultline's own.

Every function that a role may call is called with what its types can hold: nulls, infinities, the ends of a range, arrays of
another length, documents with something else in each place.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver

_LONG = "x" * 20_000
_WHOLES = ["-1", "0", "2147483647", "-2147483648"]
_OF_TYPE = {
    "boolean": ["true", "false"],
    "integer": _WHOLES,
    "bigint": [*_WHOLES, "9223372036854775807", "-9223372036854775808"],
    "double precision": ["-1", "0", "1e-300", "1e300", "NaN", "Infinity", "-Infinity"],
    "numeric": ["-1", "0", "1e-300", "1e300", "NaN", "Infinity", "-Infinity"],
    "text": ["", " ", "x\x01y", "\u202e", "*", "/", "NaN", "infinity", _LONG],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "timestamp with time zone": ["infinity", "-infinity", "4713-01-01 BC", "294276-12-31 23:59:59Z"],
    "interval": ["-1 day", "178000000 years", "-178000000 years", "0"],
    "bytea": ["", "\\x00"],
    "xid8": ["0", "18446744073709551615"],
}
#: In each place of a document.
_IN_DOCUMENTS: list[Any] = [
    None,
    True,
    -1,
    10**20,
    1e300,
    "",
    "x\x01",
    "1e400000",
    "infinity",
    "4714-01-01 BC",
    "x" * 600,
    [],
    [None],
    [[1]],
    {},
]
_DOCUMENTS = ["null", "true", "1", '"x"', "[]", "[null]", "[1]", "[[]]", "[[1]]", "[{}]", "[[{}]]", "{}", '{"x": 1}']
#: Parameters that are text, and JSON in it.
_TEXT_DOCUMENTS = {"jobs", "nodes", "args", "payload"}
#: What is no JSON, or none that jsonb can hold.
_NO_DOCUMENTS = ["", "{", '"\\u0000"', '{"a": 1e400000}', '[{"task": "t", "args": {"a": 1e400000}}]']

#: A worker writes these by itself, from values that its Python has checked. For one that sends something else, the words of
#: PostgreSQL will do: as with every error, nothing was written.
_WRITTEN_BY_WORKERS = {
    "declare_schedules",
    "due",
    "first_over",
    "receive",
    "record",
    "resolve",
    "spawn",
    "suspend",
    "tally",
    "tick",
    "tick_many",
    "wake_changed_programs",
    "watch",
}
_ID = "01890000-0000-7000-8000-000000000000"
_JOB = {
    "task": "t",
    "args": {"a": 1},
    "queue": "q",
    "priority": 1,
    "delay_seconds": 1,
    "max_attempts": 1,
    "lease_seconds": 1,
    "idempotency_key": "k",
    "keep_args": True,
    "trace": "x",
    "digest": "d",
    "group": "g",
    "expires_seconds": 9,
}
_UNIQUE = {"key": "k", "while": "open", "period": 3, "then": "replace"}
_OTHER_JOB = {"task": "t", "run_at": "2030-01-01Z", "expires_at": "2031-01-01Z", "id": _ID, "unique": _UNIQUE}
_DEBOUNCED = {"task": "t", "unique": {"debounce": 3, "at_most": 5}}
_SIGNED = {"by": "me", "reason": "r"}
_LIMIT = {"concurrency": 3, "rate": 2, "per": 3, "burst": 4}
_GROUP_LIMIT = {"rate": 2, "weight": 3, "ordered": True}
_SPEC = {
    "every": 60,
    "catch_up": "all",
    "catch_up_seconds": 5,
    "overlap": "skip",
    "jitter_seconds": 5,
    "tick_arg": "x",
    "job": {"task": "t", "args": {"a": 1}, "expires_seconds": 50},
}
_SPECS = [
    _SPEC,
    {"cron": "* * * * *", "tz": "UTC", "job": {"task": "t"}},
    {"at": "2030-01-01T00:00:00Z", "job": {"task": "t"}},
]
_COUNTS = (
    "started succeeded failed rescheduled released suspended programs_changed expired lost refused requeued wait_seconds_sum"
    " run_seconds_sum"
)


class Stage(NamedTuple):
    """A job that runs and has called a child, and one of everything else."""

    job_id: str
    token: int
    owner: str
    call_id: int
    #: Of a job that has called nothing.
    plain: dict[str, list[Any]]
    failed_id: str


def _stage(queue: Driver) -> Stage:
    spec = {"every": 60, "job": {"task": "t"}}
    queue.heartbeat("w")
    queue.execute("select faultline.declare_budget('b', '{\"rate\": 1}')")
    queue.execute("select faultline.declare_queue('lim', '{\"each_group\": {\"concurrency\": 1}}')")
    queue.execute("select faultline.subscribe('topic', 't')")
    queue.execute(
        "select * from faultline.declare_schedules('w', %s::json)", json.dumps([{"name": "s", "digest": "d", "spec": spec}])
    )
    queue.execute("select faultline.set_schedule('own', %s::json)", json.dumps(spec))
    queue.enqueue(group="g", queue="lim")
    queue.enqueue(queue="other")
    failed, plain, lease = (queue.new_lease(lease_seconds=3600) for _ in range(3))
    queue.fail(failed, then="fail")
    own = (lease.job_id, lease.fencing_token, lease.owner)
    queue.execute("select * from faultline.stream(%s, %s, %s, 'st', 0, '[1]')", *own)
    calls = [{"number": "7", "kind": "step", "name": "n"}, {"number": "8", "kind": "saga", "name": "n"}]
    queue.execute("select * from faultline.record(%s, %s, %s, %s::jsonb)", *own, json.dumps(calls))
    spawned = "'9', 'children', 'c', 'd', 'raise', 2, 0, '[{\"task\": \"t\"}]'"
    call_id = queue.value(f"select call_id from faultline.spawn(%s, %s, %s, {spawned})", *own)
    leases: dict[str, list[Any]] = {"job_ids": [str(plain.job_id)], "tokens": [plain.fencing_token], "owners": [plain.owner]}
    return Stage(str(lease.job_id), lease.fencing_token, lease.owner, call_id, leases, str(failed.job_id))


Calls = list[tuple[str, dict[str, Any]]]


def _lease(stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
    """As the functions take one, and as they take several."""
    one = {"job_id": stage.job_id, "fencing_token": stage.token, "owner": stage.owner}
    return one, {"job_ids": [stage.job_id], "tokens": [stage.token], "owners": [stage.owner]}


def _submissions() -> Calls:
    job = {
        "task": "t",
        "queue": "q",
        "priority": 1,
        "max_attempts": 1,
        "lease": "1 s",
        "keep_args": True,
        "args": '{"a": 1}',
    }
    nodes = [
        _JOB,
        {"name": "a", "task": "t", "args": {"a": 1}},
        {"name": "b", "task": "t", "after": ["a"], "if_failed": "run"},
    ]
    message = {"topic": "topic", "payload": '{"a": 1}'}
    options = {name: value for name, value in _JOB.items() if name in ("queue", "priority", "group", "expires_seconds")}
    one = {"id": _ID, "task": "t", "args": '{"a": 1}', "queue": "q", "priority": 1, "max_attempts": 2, "lease_seconds": 30}
    one |= {"keep_args": True, "trace": "x"}
    template = {"group": ["a", 1, ["b"]], "unique": {"key": ["a", ["b"]]}}
    return [
        ("enqueue", {**job, "delay": "1 s"}),
        ("enqueue", {**job, "run_at": "2030-01-01Z", "idempotency_key": "k", "id": _ID, "group": "g"}),
        ("enqueue_one", {**one, "fresh": False}),
        *[("enqueue_many", {"jobs": [one], "appears_late": True}) for one in (_JOB, _OTHER_JOB, _DEBOUNCED)],
        ("enqueue_flow", {"nodes": nodes, "appears_late": True}),
        ("publish", {**message, "idempotency_key": "k", "trace": "x", "appears_late": True}),
        ("publish", {**message, "id": _ID}),
        *[
            ("subscribe", {"topic": "topic", "task": "t2", "options": o, "takes": ["a"], **_SIGNED})
            for o in (options, template)
        ],
        ("unsubscribe", {"topic": "topic", "task": "t", **_SIGNED}),
    ]


def _calls_about_leases(stage: Stage) -> Calls:
    one, some = _lease(stage)
    bounds = {"priorities": [0], "lower_bounds": ["2020-01-01Z"], "lower_ids": [stage.job_id]}
    return [
        *[("claim", {"queue": name, "owner": "w/99", "max_jobs": 1, "syncs": False, **bounds}) for name in ("other", "lim")],
        ("complete", {**some, "results": [{"a": 1}], "claims": True}),
        ("due", {"queues": ["other", "q"], "bound_queues": ["other"], **bounds}),
        ("fail", {**some, "failures": [{"then": "retry", "delay_seconds": 5, "error": "e", "calls": ["7"]}]}),
        ("fence", one),
        ("needs_start_record", {"attempt": 1, "max_attempts": 1, "reaps": 1}),
        ("next_claim_at", {"queue": "lim"}),
        ("program_changed", {**one, "code": "c", "error": "e"}),
        ("progress", {**one, "progress": {"a": 1}}),
        ("recall", {"job_id": stage.job_id, "name": "n"}),
        ("record_refusal", one),
        ("record_start", some),
        ("release", {**some, "delays_seconds": [1]}),
        ("renew", some),
        ("same_transaction", {"fenced_in": "3"}),
        ("step", {**one, "name": "n", "result": {"a": 1}}),
        ("sync_claim", {"job_id": stage.job_id, "token": stage.token, "owner": stage.owner}),
        *[("take_budget", {**one, "budget": "b", "cost": 1, "number": number}) for number in (1, 2)],
        ("yield_to_waiting_worker", {"queue": "lim", "worker_id": "w"}),
    ]


def _calls_about_flows(stage: Stage, run: str) -> Calls:
    one, some = _lease(stage)
    signal = {"number": "3", "kind": "signal", "name": "n", "digest": "d", "seconds": 3, "policy": None, "fresh": True}
    sleep = {"number": "3", "kind": "sleep", "name": "n", "digest": "d", "until": "2030-01-01Z"}
    call = {"name": "n", "digest": None, "result": {"a": 1}, "error": "e", "tries": 1, "until_seconds": 3}
    ended = [("3", "step", "done"), ("8", "saga", "failed"), ("7", "step", "forgotten")]
    jobs = {"kind": "children", "digest": "d", "policy": "raise", "total": 2, "jobs": [{"task": "t", "args": {"a": 1}}]}
    sent = {"name": "n", "payload": {"a": 1}, "key": "k", "sent_by": "me", "only_queues": ["default"]}
    return [
        ("chunks", {"job_id": stage.job_id, "name": "st", "after_token": -1, "after_position": -1, "max_rows": 1}),
        ("collect_outcomes", {**one, "number": "9"}),
        ("continue_as_new", {**stage.plain, "args": [{"a": 1}]}),
        *[("first_over", {**one, "waits": [wait]}) for wait in (signal, sleep)],
        ("fork", {"job_id": stage.job_id, "before_number": "8", "args": '{"a": 1}', "only_queues": ["default"], **_SIGNED}),
        ("history", {"job_id": stage.job_id}),
        ("outcomes", {"call_id": stage.call_id, "after_index": -1, "max_rows": 1}),
        ("receive", {**one, "number": "3", "name": "n", "digest": "d", "seconds": 3, "fresh": True}),
        *[("record", {**one, "calls": [{**call, "number": n, "kind": kind, "outcome": how}]}) for n, kind, how in ended],
        ("resolve", {"max_nudges": 1, "cursor": {"run": run, "xmax": "3", "open": ["3"], "kept": [3]}}),
        ("signal", {"job_id": stage.job_id, **sent}),
        ("spawn", {**one, **jobs, "number": "3", "name": "n", "first_index": 0}),
        ("spawn", {**one, **jobs, "number": "9", "name": "c", "first_index": 1}),
        ("stream", {**one, "name": "st", "first_position": 1, "items": [1]}),
        *[("suspend", {**some, "waits": [[wait]]}) for wait in (signal, sleep)],
        ("sweep", {"max_jobs": 1}),
        ("upstream", one),
        ("wake_changed_programs", {"queues": ["default"], "tasks": ["t"], "code": "c"}),
        ("watch", {**one, "number": "3", "name": "n", "digest": "d", "policy": "raise", "targets": [stage.failed_id]}),
    ]


def _calls_about_schedules() -> Calls:
    ticks = {"fire": ["now"], "missed": [{"from": "now", "to": "now", "ticks": 1}], "next_at": "2030-01-01Z"}
    tick = {"name": "s", "revision": 1, "expected": None, **ticks}
    by_people = ("pause_schedule", "resume_schedule", "run_schedule", "remove_schedule")
    declared = {"name": "s2", "digest": "d2", "was": ["s", "x"]}
    return [
        ("backfill", {"name": "own", "ticks": ["2020-01-01Z"], **_SIGNED}),
        *[("declare_schedules", {"worker": "w", "declarations": [{**declared, "spec": spec}]}) for spec in _SPECS],
        ("due_schedules", {"digests": ["d"], "max_schedules": 3, "but_not": ["x"]}),
        ("schedule_failed", {"name": "s", "revision": 1, "error": "e"}),
        *[("set_schedule", {"name": "own", "spec": spec, **_SIGNED}) for spec in _SPECS],
        ("stale_schedules", {"names": ["s"], "digests": ["x"]}),
        ("tick", tick),
        ("tick_many", {"decisions": [tick]}),
        *[(name, {"name": "own", "only_queues": ["default"], **_SIGNED}) for name in by_people],
    ]


def _calls_about_all_else(stage: Stage) -> Calls:
    beat = {"worker_id": "w", "host": "h", "pid": 1, "version": "v", "queues": ["q"], "sleeping": ["q"], "watched": True}
    known = {"tasks": ["t"], "connections_max": 3, "schedules": ["d"], "budgets": ["b"], "limits": ["lim"]}
    tally = {"queue": "q", "minute": "now", **dict.fromkeys(_COUNTS.split(), 1), "waits": [1], "runs": [1]}
    what = ("ledger", "failed", "journal", "keys", "ticks", "unique_keys", "flows")
    some = {"queue": "other", "task": "t", "max_jobs": 5, **_SIGNED}
    limits = {"queue": _LIMIT, "each_group": _GROUP_LIMIT, "groups": {"g": _LIMIT}}
    budget = {"rate": 2, "per": 3, "burst": 4}
    return [
        ("announce", {"worker_id": "w", **known}),
        ("api_key", {"digest": "\\x01"}),
        ("cancel", {"job_id": stage.job_id, "only_queues": ["default"], "undo": True, **_SIGNED}),
        ("cancel_jobs", {**some, "group_key": "g", "state": "queued"}),
        ("change_setting", {"name": "args_bytes_max", "value": 65536, **_SIGNED}),
        ("declare_budget", {"budget": "b", "declared": budget}),
        ("declare_queue", {"queue": "q", "declared": limits}),
        ("error_kind", {"error": "ValueError: no"}),
        ("expire", {"max_jobs": 1}),
        ("first_expired", {"lower_bound": "2020-01-01Z"}),
        ("heartbeat", {**beat, "leases": 1, "clock_ahead_seconds": 1}),
        ("limited", {"queues": ["lim"]}),
        ("maintain_limits", {"max_groups": 1}),
        ("pause", {"queue": "other", **_SIGNED}),
        *[("prune", {"what": name, "older_than": "1 day", "max_rows": 3}) for name in what],
        ("reap", {"max_jobs": 1, "notice_dead": True, "lower_bound": "2020-01-01Z", "latest": "2030-01-01Z"}),
        ("reconcile", {"max_jobs": 1}),
        ("recount", {"queue": "lim"}),
        ("recover", {"floor": 1000, **_SIGNED}),
        ("reset_limit", {"queue": "lim", "group_key": "*", **_SIGNED}),
        ("resume", {"queue": "other", **_SIGNED}),
        *[(name, {"job_id": stage.failed_id, "only_queues": ["default"], **_SIGNED}) for name in ("retry", "undo")],
        ("retry_failed", {**some, "error_prefix": "b", "before_at": "infinity"}),
        ("roll_up", {"max_rows": 1}),
        ("sample", {"exact_max": 1}),
        ("set_budget", {"budget": "b", "fields": budget, **_SIGNED}),
        ("set_limit", {"queue": "lim", "group_key": "", "fields": _LIMIT, **_SIGNED}),
        ("tally", {"worker_id": "w", "rows": [tally]}),
        ("unregister_worker", {"worker_id": "w"}),
        ("worker_lock", {"worker_id": "w"}),
    ]


def _text(value: Any, *, is_document: bool) -> str | None:
    """As PostgreSQL reads it."""
    if value is None:
        return None
    if is_document:
        return value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, list):
        return f"{{{','.join('NULL' if one is None else json.dumps(str(one)) for one in value)}}}"
    return str(value)


def _bad(kind: str, valid: Any, *, is_document: bool) -> Iterator[str | None]:
    yield None
    if is_document:
        yield from _DOCUMENTS
        yield from _NO_DOCUMENTS if kind == "text" else []
        whole = json.loads(valid) if isinstance(valid, str) else valid
        for path in _paths(whole):
            for bad in _IN_DOCUMENTS:
                yield json.dumps(_changed(whole, path, bad))
    elif kind.endswith("[]"):
        lists: list[list[Any]] = [[], [None], [*valid, *valid], [*valid, None], *([one] for one in _OF_TYPE[kind[:-2]])]
        yield from (_text(one, is_document=False) for one in lists)
    else:
        yield from _OF_TYPE[kind]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _paths(item, (*path, key))


def _changed(value: Any, path: tuple[Any, ...], bad: Any) -> Any:
    whole = copy.deepcopy(value)
    place = whole
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = bad
    return whole


_PARAMETERS = """
    select p.proname::text, p.proargnames[:p.pronargs],
      array(select format_type(t.oid, null) from unnest(p.proargtypes) with ordinality as t (oid, nth) order by t.nth)
    from pg_proc p
    where p.pronamespace = 'faultline'::regnamespace and exists (
      select from pg_roles r where starts_with(r.rolname, 'faultline_') and has_function_privilege(r.oid, p.oid, 'execute')
    )
    order by p.oid
"""


def _refusal(queue: Driver, name: str, kinds: dict[str, str], given: dict[str, str | None]) -> psycopg.Error | None:
    words = ", ".join(f'"{parameter}" => %s::{kinds[parameter]}' for parameter in given)
    try:
        with queue.unsaved():
            queue.connection.execute(f"select * from faultline.{name}({words})".encode(), list(given.values()))
    except psycopg.Error as error:
        return error
    return None


def test_a_value_that_makes_no_sense_is_refused_in_words_of_faultline(queue: Driver) -> None:
    parameters: dict[str, list[dict[str, str]]] = {}
    for name, names, kinds in queue.execute(_PARAMETERS):
        parameters.setdefault(name, []).append(dict(zip(names or [], kinds, strict=True)))
    stage = _stage(queue)
    run = queue.value("select faultline.server_run()")
    calls = [
        *_submissions(),
        *_calls_about_leases(stage),
        *_calls_about_flows(stage, run),
        *_calls_about_schedules(),
        *_calls_about_all_else(stage),
    ]
    refused: set[str] = set()
    raw: dict[str, str] = {}

    for name, valid in calls:
        for kinds in parameters[name]:
            documents = {each for each in valid if kinds[each] in ("json", "jsonb") or each in _TEXT_DOCUMENTS}
            base = {each: _text(value, is_document=each in documents) for each, value in valid.items()}
            if _refusal(queue, name, kinds, base) is not None:
                refused.add(name)
            for each, value in valid.items():
                for bad in _bad(kinds[each], value, is_document=each in documents):
                    error = _refusal(queue, name, kinds, {**base, each: bad})
                    if error is not None and not (error.sqlstate or "").startswith("FL"):
                        raw.setdefault(name, f"{each} => {bad!r:.200}: {error.sqlstate} {error.diag.message_primary}")
                        assert error.sqlstate is not None
                        assert error.sqlstate[:2] in ("22", "23"), raw[name]

    assert set(parameters) - {name for name, _ in calls} == {"clock", "now", "protocol"}
    # What makes sense got through: there is no transaction to be the same, and no saga to undo.
    assert refused == {"same_transaction", "undo"}
    assert {name: said for name, said in raw.items() if name not in _WRITTEN_BY_WORKERS} == {}
    assert set(raw) == _WRITTEN_BY_WORKERS

"""Arguments come back as they were sent: the database keeps their text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faultline.core.errors import JobRejected, KeyConflict
from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.translation import is_about_data

if TYPE_CHECKING:
    from tests.driver import Driver

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63 - 1, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, -(2**64), 10**100])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([1e16, -0.0, 0.0, 1.0, 1e300, 5e-324, 1e22])
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(args=st.dictionaries(_TEXT, _VALUES, max_size=5))
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_worker_gets_what_was_sent_down_to_the_type_and_the_order_of_keys(queue: Driver, args: dict[str, Any]) -> None:
    job_id = queue.enqueue(args=args)
    lease = queue.claim_one()

    assert repr(lease.args) == repr(args)

    queue.complete(lease)
    assert repr(queue.job(job_id).args) == repr(args)


@pytest.mark.parametrize("how", ["fresh", "named", "keyed"])
def test_the_text_is_kept_as_it_was_sent(queue: Driver, how: str) -> None:
    text = '{"z" : 1e16, "a":[-0.0,1.50,  1E5],"z2":{"b":1,"a":2}}'
    job = Submission("t", text, id=uuid4() if how == "named" else None, idempotency_key="k" if how == "keyed" else None)

    queue.run(verbs.enqueue_many([job], Ids() if how == "fresh" else None))

    assert queue.value("select args::text from faultline.open_jobs") == text


def test_the_limit_is_judged_by_what_was_sent(queue: Driver) -> None:
    """As jsonb these are 1.5 MB."""
    queue.enqueue(args={"values": [1e300] * 5000})

    assert queue.claim_one().args == {"values": [1e300] * 5000}


@pytest.mark.parametrize("same", ['{"b": 1.0, "a": 10000000000000000}', '{"a":1e16,"b":1.0}', '{ "a" : 1e16, "b" : 1.0 }'])
def test_a_key_does_not_ask_how_the_arguments_were_written(queue: Driver, same: str) -> None:
    first = queue.run(verbs.enqueue_many([Submission("t", '{"a": 1e16, "b": 1.0}', idempotency_key="k")]))[0]

    again = queue.run(verbs.enqueue_many([Submission("t", same, idempotency_key="k")]))[0]

    assert (again.job_id, again.created) == (first.job_id, False)
    with pytest.raises(KeyConflict):
        queue.run(verbs.enqueue_many([Submission("t", '{"a": 2, "b": 1.0}', idempotency_key="k")]))


@pytest.mark.parametrize("kind", ["text", "json"])
def test_plain_sql_keeps_the_text_too(queue: Driver, kind: str) -> None:
    queue.connection.execute(f"""select faultline.enqueue('t', '{{"b" : 1e16, "a" : -0.0}}'::{kind})""".encode())

    assert queue.value("select args::text from faultline.open_jobs") == '{"b" : 1e16, "a" : -0.0}'


@pytest.mark.parametrize(
    "call",
    [
        "select faultline.enqueue('t')",
        "select faultline.enqueue('t', '{}')",
        "select faultline.enqueue('t', jsonb_build_object('a', 1))",
        "select faultline.enqueue('t', '{}'::jsonb, 'q', 1)",
        "select faultline.enqueue('t', json_build_object('a', 1))",
        "select faultline.enqueue('t', row_to_json(row(1)), priority => 1)",
        "select faultline.enqueue('t', null::json)",
        "select faultline.enqueue(task => 't', queue => 'q')",
        "select faultline.enqueue(task => 't', args => '{}', queue => 'q')",
        "select faultline.enqueue('t', null)",
        "select faultline.enqueue('t', '{}', null, null, null, null, null, null, null, null, null)",
        'select job_id from faultline.enqueue_many(\'[{"task": "t"}]\')',
        'select job_id from faultline.enqueue_many(\'[{"task": "t"}]\'::jsonb, false)',
        'select job_id from faultline.enqueue_many(\'[{"task": "t"}]\'::jsonb, false, false)',
        "select job_id from faultline.enqueue_many(jsonb_build_array(jsonb_build_object('task', 't')))",
        "select job_id from faultline.enqueue_many(json_build_array(json_build_object('task', 't')), false)",
    ],
)
def test_every_way_to_call_it_goes_on_working(queue: Driver, call: str) -> None:
    job_id = queue.value(call)

    assert queue.job(job_id).task == "t"


@pytest.mark.parametrize("value", ['"\\u0000"', '"\\ud800"', "1e400000", "-1e-400000", "9" * 200_000, "NaN", "[" * 50_000])
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("verb", ["enqueue", "enqueue_many"])
def test_arguments_that_cannot_be_stored_are_refused_by_every_verb(
    queue: Driver, verb: str, key: str | None, value: str
) -> None:
    args = f'{{"a": {value}}}'

    with pytest.raises(psycopg.Error, match=r"job 1 of 1 .*is refused|the jobs are refused") as refused:
        if verb == "enqueue":
            queue.connection.execute("select faultline.enqueue('t', %s, idempotency_key => %s)", (args, key))
        else:
            own = "" if key is None else ', "idempotency_key": "k"'
            queue.connection.execute("select from faultline.enqueue_many(%s)", (f'[{{"task": "t", "args": {args}{own}}}]',))

    assert refused.value.sqlstate == "FL005"
    assert is_about_data(refused.value)
    assert queue.value("select count(*) from faultline.jobs") == 0


def test_a_client_is_told_of_arguments_that_cannot_be_stored(queue: Driver) -> None:
    for job in (
        Submission("t", '{"a": 1e400000}', idempotency_key="k"),
        Submission("t", '{"a": 1e400000}', id=uuid4()),
    ):
        with pytest.raises(JobRejected, match="job 1 of 1 is refused: value overflows numeric format"):
            queue.run(verbs.enqueue_many([job]))


def test_what_only_postgresql_can_tell_is_a_refusal_for_clients_too(queue: Driver) -> None:
    with pytest.raises(JobRejected, match=r"cannot take these values: .*uuid") as refused:
        queue.run(verbs.cancel("no id"))

    assert is_about_data(refused.value)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ('{"task": "t", "priorty": 1}', 'job 2 of 3 (task t) is refused: no job has a field "priorty"'),
        ('{"task": "t", "delay": 5, "key": "k"}', 'no job has a field "delay"'),
        ('{"priorty": 1}', "job 2 of 3 (task without name) is refused: it names no task"),
        ("[]", "job 2 of 3 (task without name) is refused: it is no JSON object"),
        ("null", "it is no JSON object"),
        ('{"task": "t", "priority": "high"}', 'job 2 of 3 is refused: invalid input syntax for type numeric: "high"'),
        ('{"task": "t", "keep_args": "maybe"}', "job 2 of 3 is refused: invalid input syntax for type boolean"),
        ('{"task": "t", "id": "7"}', "job 2 of 3 is refused: invalid input syntax for type uuid"),
        ('{"task": "t", "run_at": "2030-13-45T00:00:00Z"}', "job 2 of 3 is refused: date/time field value out of range"),
        ('{"task": "t\\u0000"}', "job 2 of 3 is refused: unsupported Unicode escape sequence"),
    ],
)
@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_job_that_makes_no_sense_is_refused_with_its_place_and_the_reason(
    queue: Driver, kind: str, wrong: str, why: str
) -> None:
    document = f'[{{"task": "t"}}, {wrong}, {{"task": "t", "id": "x"}}]'

    with pytest.raises(psycopg.Error) as refused:
        queue.connection.execute(f"select from faultline.enqueue_many(%s::{kind})".encode(), (document,))

    assert refused.value.sqlstate == "FL005"
    assert why in str(refused.value)
    assert queue.value("select count(*) from faultline.jobs") == 0


@pytest.mark.parametrize("document", ["", "x", "[", '[{"task": "t"}', "{}", "1", "null", None])
def test_a_document_that_is_no_array_of_jobs_is_refused(queue: Driver, document: str | None) -> None:
    with pytest.raises(psycopg.Error, match=r"the jobs are refused: invalid input|jobs must be a JSON array") as refused:
        queue.connection.execute("select from faultline.enqueue_many(%s::text)", (document,))

    assert refused.value.sqlstate == "FL005"

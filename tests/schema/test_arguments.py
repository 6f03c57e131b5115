"""Arguments come back as they were sent: the database keeps their text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faultline.core.errors import KeyConflict
from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import queue as verbs

if TYPE_CHECKING:
    from tests.driver import Driver

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
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


def test_plain_sql_keeps_the_text_too(queue: Driver) -> None:
    queue.connection.execute("""select faultline.enqueue('t', '{"b" : 1e16, "a" : -0.0}')""")

    assert queue.value("select args::text from faultline.open_jobs") == '{"b" : 1e16, "a" : -0.0}'


@pytest.mark.parametrize(
    "call",
    [
        "select faultline.enqueue('t')",
        "select faultline.enqueue('t', '{}')",
        "select faultline.enqueue('t', jsonb_build_object('a', 1))",
        "select faultline.enqueue('t', '{}'::jsonb, 'q', 1)",
        "select faultline.enqueue(task => 't', queue => 'q')",
        "select faultline.enqueue(task => 't', args => '{}', queue => 'q')",
        "select faultline.enqueue('t', null)",
        "select faultline.enqueue('t', '{}', null, null, null, null, null, null, null, null, null)",
        'select job_id from faultline.enqueue_many(\'[{"task": "t"}]\')',
        'select job_id from faultline.enqueue_many(\'[{"task": "t"}]\'::jsonb, false)',
        'select job_id from faultline.enqueue_many(\'[{"task": "t"}]\'::jsonb, false, false)',
        "select job_id from faultline.enqueue_many(jsonb_build_array(jsonb_build_object('task', 't')))",
    ],
)
def test_every_way_to_call_it_goes_on_working(queue: Driver, call: str) -> None:
    job_id = queue.value(call)

    assert queue.job(job_id).task == "t"


@pytest.mark.parametrize("escape", ["\\u0000", "\\ud800"])
@pytest.mark.parametrize("verb", ["enqueue", "enqueue_many"])
def test_what_is_no_text_is_refused_by_every_verb(queue: Driver, verb: str, escape: str) -> None:
    args = f'{{"a": "{escape}"}}'

    with pytest.raises(psycopg.DataError):
        if verb == "enqueue":
            queue.connection.execute("select faultline.enqueue('t', %s)", (args,))
        else:
            queue.connection.execute("select from faultline.enqueue_many(%s)", (f'[{{"task": "t", "args": {args}}}]',))

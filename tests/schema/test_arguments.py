"""Arguments come back as they were sent: the database keeps their text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faultline.core.errors import JobRejected
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


@pytest.mark.parametrize("until", ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01Z"])
@pytest.mark.parametrize("verb", ["first_over", "suspend"])
def test_nobody_waits_until_a_moment_that_python_cannot_read(queue: Driver, verb: str, until: str) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    wait = {"number": "1", "kind": "sleep", "name": "sleep", "until": until}

    with pytest.raises(psycopg.errors.CheckViolation, match="sane_until"):
        if verb == "suspend":
            queue.run(verbs.suspend([lease], [json.dumps([wait])]))
        else:
            queue.run(verbs.first_over(lease, [wait]))


def test_what_only_postgresql_can_tell_is_a_refusal_for_clients_too(queue: Driver) -> None:
    with pytest.raises(JobRejected, match=r"cannot store these values: .*uuid") as refused:
        queue.run(verbs.cancel("no id"))

    assert is_about_data(refused.value)


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01Z"])
def test_a_schedule_has_no_tick_at_a_moment_that_python_cannot_read(queue: Driver, moment: str) -> None:
    queue.execute('select faultline.set_schedule(\'s\', \'{"every": 60, "job": {"task": "t"}}\')')
    queue.execute("select faultline.pause_schedule('s')")

    for call in ("faultline.resume_schedule('s', %s::timestamptz)", "faultline.backfill('s', array[%s::timestamptz])"):
        with pytest.raises(psycopg.Error, match="schedule s must be a moment from 1970 to 9999, not") as refused:
            queue.execute(f"select {call}", moment)
        assert refused.value.sqlstate == "FL005"


@pytest.mark.parametrize(
    ("ahead", "kept"), [("infinity", 1e9), ("-infinity", -1e9), ("nan", 1e9), ("0.5", 0.5), (None, None)]
)
def test_a_worker_whose_clock_is_nowhere_can_be_shown(queue: Driver, ahead: str | None, kept: float | None) -> None:
    queue.execute("select faultline.heartbeat('w', 'h', 1, '1', '{}', clock_ahead_seconds => %s::double precision)", ahead)

    assert queue.value("select clock_ahead_seconds from faultline.workers") == kept


_ENQUEUES = {
    "enqueue": "select faultline.enqueue('t', %s)",
    "enqueue_many": 'select * from faultline.enqueue_many(format(\'[{"task": "t", "args": %%s}]\', %s::text))',
    "fresh": 'select * from faultline.enqueue_many(format(\'[{"task": "t", "args": %%s}]\', %s::text), fresh => true)',
    "enqueue_flow": "select * from faultline.enqueue_flow(format("
    '\'[{"task": "t"}, {"name": "n", "task": "t", "args": %%s}]\', %s::text))',
    "publish": "select * from faultline.publish('topic', %s::text)",
}


@pytest.mark.parametrize("way", _ENQUEUES)
@pytest.mark.parametrize(
    "value",
    ['"\\u0000"', '"\\ud800"', "1e400000", "[-1E+131072]", "1e-16384 ", "9" * 131_073, "0." + "1" * 16_384],
    ids=["nul", "half", "exponent", "sign", "small", "long", "precise"],
)
def test_no_way_to_enqueue_takes_what_jsonb_cannot_hold(queue: Driver, way: str, value: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        queue.execute(_ENQUEUES[way], f'{{"a": {value}}}')

    assert refused.value.sqlstate == "FL005"
    assert queue.value("select count(*) from faultline.jobs") == 0


@pytest.mark.parametrize("value", ['"\\u00e9"', "1e999", '"1e5000 "', "9" * 200, '"\\\\u0000"'])
@pytest.mark.parametrize("way", ["enqueue", "fresh"])
def test_each_way_to_enqueue_keeps_the_text_of_what_jsonb_can_hold(queue: Driver, way: str, value: str) -> None:
    queue.execute(_ENQUEUES[way], f'{{"a": {value}}}')

    assert queue.value("select args::text from faultline.jobs") == f'{{"a": {value}}}'

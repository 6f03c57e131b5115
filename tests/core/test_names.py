"""Names that people cannot read or type are refused, by Python and by the database alike."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from faultline import ConfigError, Faultline, JobRejected
from faultline.attempt.attempt import check_step_name
from faultline.attempt.streams import check_stream_name
from faultline.core.checks import check_queue, hides
from faultline.core.limits import check_budget, check_group
from faultline_proof.probes.names import HIDING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver


def test_python_and_the_database_mean_the_same_characters(queue: Driver) -> None:
    numbers = [number for number in range(1, sys.maxunicode + 1) if not 0xD800 <= number <= 0xDFFF]

    found = queue.execute(
        "select n from unnest(%s::integer[]) n where faultline.is_unreadable('a' || chr(n) || 'b')", numbers
    )

    assert [n for (n,) in found] == [number for number in numbers if hides(chr(number))]


def test_python_and_the_database_mean_the_same_white_space(queue: Driver) -> None:
    numbers = [number for number in range(1, 0x10000) if not 0xD800 <= number <= 0xDFFF]

    found = queue.execute(
        "select n from unnest(%s::integer[]) n where faultline.is_unreadable('a' || chr(n), true)", numbers
    )

    assert [n for (n,) in found] == [n for n in numbers if hides(chr(n)) or chr(n).isspace()]


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("check", [check_queue, check_group, check_budget, check_step_name, check_stream_name])
def test_a_name_that_hides_or_reorders_text_is_refused(check: Callable[[Any], None], name: str) -> None:
    with pytest.raises(JobRejected, match="control characters"):
        check(name)


@pytest.mark.parametrize("name", HIDING)
def test_so_are_names_of_topics_and_schedules_and_signals(app: Faultline, name: str) -> None:
    @app.task
    async def mail() -> None: ...

    with pytest.raises(JobRejected, match="control characters"):
        app.publish(name)
    with pytest.raises(ConfigError, match="control characters"):
        app.schedule(every=60, name=name)
    with pytest.raises(JobRejected, match="control characters"):
        mail.enqueue().signal(name)


@pytest.mark.parametrize("name", ["Grüße", "客户", "a b", "🙂", "مرحبا"])
def test_what_people_can_read_is_a_name(name: str) -> None:
    for check in (check_queue, check_group, check_budget, check_step_name, check_stream_name):
        check(name)

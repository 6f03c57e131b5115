"""A failed job waits as long wherever that is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.core import pause as backoff

if TYPE_CHECKING:
    from tests.driver import Driver


def test_a_worker_waits_as_long_as_the_database_would(queue: Driver) -> None:
    for attempt in range(1, 1001):
        assert backoff.after_attempt(attempt) == queue.value("select faultline.backoff(%s)", attempt)


def test_each_pause_is_twice_as_long_up_to_a_limit() -> None:
    pause = backoff.Pause(0.1, 0.5)
    seconds = [pause.next() for _ in range(5)]
    pause.reset()

    assert [*seconds, pause.next()] == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5, 0.1])

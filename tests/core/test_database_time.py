"""The database's time between two readings: right on a busy machine, an idle one, and one that slept."""

from __future__ import annotations

from datetime import UTC, datetime

from faultline.core.database_time import READ_SECONDS, DatabaseTime


class Clocks:
    """A machine's steady clock and its time of day."""

    def __init__(self) -> None:
        self.steady, self.day = 100.0, 5_000.0

    def go_on(self, seconds: float) -> None:
        self.steady += seconds
        self.day += seconds


def read_at(clocks: Clocks, database: float) -> DatabaseTime:
    time = DatabaseTime(lambda: clocks.steady, lambda: clocks.day)
    time.set(datetime.fromtimestamp(database, UTC))
    return time


def test_the_time_is_counted_from_when_it_was_read_not_from_when_it_is_first_wanted() -> None:
    clocks = Clocks()
    time = read_at(clocks, 9_000.0)

    clocks.go_on(24.8)

    assert time.seconds() == 9_024.8
    assert not time.is_doubtful()


def test_it_is_in_doubt_until_it_was_read() -> None:
    assert DatabaseTime(lambda: 1.0, lambda: 1.0).is_doubtful()


def test_it_is_read_again_now_and_then_by_one_caller() -> None:
    clocks = Clocks()
    time = read_at(clocks, 9_000.0)

    clocks.go_on(READ_SECONDS)

    assert [time.is_doubtful(), time.is_doubtful()] == [True, False]


def test_a_machine_that_slept_is_noticed_by_all_until_it_was_read_again() -> None:
    """The steady clock of Linux stands still meanwhile."""
    clocks = Clocks()
    time = read_at(clocks, 9_000.0)

    clocks.day += 86_400

    assert [time.is_doubtful(), time.is_doubtful()] == [True, True]
    time.set(datetime.fromtimestamp(95_400.0, UTC))
    assert not time.is_doubtful()
    assert time.seconds() == 95_400.0


def test_a_time_of_day_that_was_set_moves_no_id() -> None:
    clocks = Clocks()
    time = read_at(clocks, 9_000.0)

    clocks.day -= 3_600

    assert time.is_doubtful()
    assert time.seconds() == 9_000.0

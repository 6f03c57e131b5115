"""Faults at one point each: handed in from outside, they happen once, where they were told to."""

from __future__ import annotations

import asyncio

import pytest

from faultline import ConfigError, Faultline
from faultline.testing import POINTS, CrashAt, CutAt, Host, WireCut, drain
from faultline.testing.child import run_in_child


def test_a_cut_wire_costs_an_answer_and_nothing_else(dsn: str) -> None:
    cut = CutAt("after_enqueue_committed")
    with Faultline(dsn, host=Host(faults=cut)) as app:

        @app.task
        async def nothing() -> None: ...

        handle = nothing.enqueue()

        assert cut.happened
        assert not handle.created  # it was sent again, and the first one was found
        assert drain(app).succeeded == 1


def test_it_happens_at_the_visit_that_was_named_and_once() -> None:
    cut = CutAt("before_step_sent", visit=2)

    cut.reach("before_step_sent")
    cut.reach("before_recall_sent")
    early = cut.happened
    with pytest.raises(WireCut, match="before_step_sent"):
        cut.reach("before_step_sent")
    cut.reach("before_step_sent")

    assert not early


@pytest.mark.parametrize("fault", [CrashAt, CutAt])
def test_an_unknown_point_is_answered_with_the_known_ones(fault: type[CrashAt | CutAt]) -> None:
    with pytest.raises(ConfigError, match="unknown fault point after_lunch; choose one of: before_enqueue_sent") as error:
        fault("after_lunch")
    with pytest.raises(ConfigError, match="counted from 1, not 0"):
        fault("before_claim_sent", visit=0)

    assert all(point in str(error.value) for point in POINTS)


def test_a_child_tells_which_points_it_reached_and_whether_it_was_killed(app: Faultline) -> None:
    @app.task
    async def nothing() -> None: ...

    nothing.enqueue()
    killed = run_in_child(app, "default", CrashAt("before_execution"))
    nothing.options(queue="other").enqueue()
    lived = run_in_child(app, "other", CrashAt("before_release_sent"))

    # Not always the last one: other threads of the child reach their own points until it is dead.
    assert ("before_execution" in killed.reached, killed.killed) == (True, True)
    assert "after_execution" not in killed.reached
    assert ("after_complete_committed" in lived.reached, lived.killed) == (True, False)


def test_a_child_that_hangs_is_killed(app: Faultline) -> None:
    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    hang.enqueue()

    with pytest.raises(AssertionError, match="did not end in a child process within 1 s; it had reached: "):
        run_in_child(app, "default", CrashAt("after_execution"), timeout=1)


def test_an_error_in_the_child_is_the_tests(app: Faultline, dsn: str) -> None:
    @app.task
    async def nothing() -> None: ...

    nothing.enqueue()
    app.host = Host(aconnect=refuse)

    with pytest.raises(AssertionError, match=r"ended by itself:(.|\n)*nobody is at home"):
        run_in_child(app, "default", CrashAt("before_execution"))


async def refuse(*_: object, **__: object) -> None:
    raise ConfigError("nobody is at home")

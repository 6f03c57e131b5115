"""Worker processes that are killed while they decide about a tick: it is decided once, and its job is there once."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from faultline.core.faults import SCHEDULE_POINTS
from faultline.core.model import Submission
from faultline.core.schedules import Policy, Rule
from faultline.store.verbs import schedules as verbs
from faultline_proof.stage import Stage

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

pytestmark = pytest.mark.long

TICKS = "select at, outcome, job_id from faultline.ticks order by at"
#: A job without its tick, or a tick without its job.
ODD = """
select j.id, t.at
from (select id from faultline.jobs where task = 'stamp') j
full join faultline.ticks t on t.job_id = j.id
where j.id is null or t.at is null
"""
#: The first decision only gives the schedule its position.
VISIT = 3


@pytest.mark.parametrize("point", SCHEDULE_POINTS)
def test_a_worker_that_is_killed_in_mid_tick_leaves_one_decision_and_one_job(dsn: str, point: str) -> None:
    with Stage("mid-tick", dsn) as stage:
        spec = verbs.spec_text(Rule(every=1), Submission("stamp"), Policy(catch_up="all"))
        stage.app.database.run(verbs.set_schedule("each second", spec))
        killed = stage.worker("A", faults=[f"{point}=kill@{VISIT}"])

        assert killed.wait() != 0
        decided: list[tuple[datetime, str, UUID]] = stage.rows(TICKS)
        stage.worker("B")
        stage.wait_for(lambda: len(stage.rows(TICKS)) >= len(decided) + 2, "B goes on")

        ticks: list[tuple[datetime, str, UUID]] = stage.rows(TICKS)
        assert ticks[: len(decided)] == decided, "what was decided stays decided"
        # Killed before it was sent, nothing was decided the third time; after the commit, it was.
        assert len(decided) >= VISIT - 1 - (point == "before_tick_many_sent")
        assert {after[0] - before[0] for before, after in pairwise(ticks)} == {timedelta(seconds=1)}
        assert {outcome for _, outcome, _ in ticks} == {"fired"}
        assert len({job_id for _, _, job_id in ticks}) == len(ticks)
        assert stage.rows(ODD) == []
    assert stage.verdict.faults == {f"kill at {point}": 1}

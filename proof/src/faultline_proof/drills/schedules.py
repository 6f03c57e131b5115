"""Schedules go on through the death of who decides, through a failover and a crash: every moment makes one job."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from faultline.core.model import Submission
from faultline.core.schedules import Policy, Rule
from faultline.store.reads import views
from faultline.store.verbs import schedules
from faultline_proof.drill import Drill
from faultline_proof.drills.failover import either, synchronous_pair
from faultline_proof.reads import audit

if TYPE_CHECKING:
    from datetime import datetime

    from faultline_proof.stage import Stage

#: The seconds between the moments of each schedule. They make up for what nobody decided in time.
EVERY = {"each second": 1.0, "each other second": 2.0}
TASK = "stamp"
#: So many moments of each are decided between two faults.
MOMENTS = 2
_DECIDED = """
select count(*)
from faultline.ticks t
join faultline.schedules s on s.id = t.schedule_id
where s.name = %s and t.at > %s
"""


def through_failover(stage: Stage) -> None:
    primary, standby = synchronous_pair(stage)
    dsn = either(primary, standby)
    for name, every in EVERY.items():
        spec = schedules.spec_text(Rule(every=every), Submission(TASK), Policy(catch_up="all"))
        stage.app.database.run(schedules.set_schedule(name, spec, by="drill", reason="to be drilled"))
    # One after the other, alone: the first has decided and does not know it, the second has computed and not decided.
    for name, fault in (("A", "after_tick_many_committed=kill@4"), ("B", "before_tick_many_sent=kill@2")):
        stage.worker(name, dsn=dsn, faults=[fault]).wait()
        stage.note("worker_killed", worker_name=name, at=fault)
    workers = [stage.worker(name, dsn=dsn) for name in "CD"]
    _let_tick(stage)
    primary.kill()
    standby.promote()
    stage.move_to(standby.dsn)
    stage.note("promoted", standby="synchronous")
    stage.verdict.took_effect("promotion of a standby")
    _let_tick(stage)
    standby.kill()
    standby.start()
    stage.move_to(standby.dsn)
    stage.note("server_restarted")
    stage.verdict.took_effect("SIGKILL of the whole server")
    stage.faults_are_over()
    until = _let_tick(stage)
    for name in EVERY:
        stage.app.database.run(schedules.pause_schedule(name, by="drill", reason="it is over"))
    stage.wait_for(lambda: not stage.app.database.run(audit.unfinished()), "their jobs have ended")
    stage.verdict.expect("workers that are still the same processes", [worker.alive for worker in workers], [True, True])
    _expect_one_job_for_each_moment(stage)
    stage.expect_sound(
        ticked=frozenset({TASK}), every=EVERY, catch_up=dict.fromkeys(EVERY, "all"), ticked_until=until.timestamp()
    )


def _let_tick(stage: Stage) -> datetime:
    """Until some moments of each that come from now on are decided, and with them all that came before."""
    now = stage.app.database.run(views.clock())
    for name in EVERY:
        stage.wait_for(partial(_has_ticked, stage, name, now), f"{name} goes on")
    return now


def _has_ticked(stage: Stage, name: str, since: datetime) -> bool:
    return bool(stage.value(_DECIDED, name, since) >= MOMENTS)


def _expect_one_job_for_each_moment(stage: Stage) -> None:
    for name, every in EVERY.items():
        ticks = stage.rows(
            "select t.at, t.outcome, t.job_id, l.job_id is not null from faultline.ticks t"
            " join faultline.schedules s on s.id = t.schedule_id left join faultline.ledger l on l.job_id = t.job_id"
            " where s.name = %s order by t.at",
            name,
        )
        stage.verdict.expect(
            f"what lies between two moments of {name}, in seconds",
            sorted({(after[0] - before[0]).total_seconds() for before, after in pairwise(ticks)}),
            [every],
        )
        wrong = [str(at) for at, outcome, _, done in ticks if outcome != "fired" or not done]
        stage.verdict.expect(f"of {len(ticks)} moments of {name}, those without a job that has succeeded", wrong, [])
        jobs = {job_id for _, _, job_id, _ in ticks}
        stage.verdict.expect("its jobs, one for each", len(jobs), len(ticks))
    made = stage.value("select count(*) from faultline.jobs where task = %s", TASK)
    stage.verdict.expect("jobs that nobody but schedules makes", made, stage.value("select count(*) from faultline.ticks"))


DRILLS = (
    Drill(
        "schedule-through-failover",
        "workers are killed while they decide about ticks, a standby is promoted, and then it is killed",
        through_failover,
    ),
)

"""The lease race: A stalls and loses its lease, B takes the job over and finishes it, A comes back and is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import JobState, Submission
from faultline_proof.drill import Drill

if TYPE_CHECKING:
    from faultline_proof.stage import Stage

LEASE_SECONDS = 1.0
STALL_SECONDS = 2.5


def lease_race(stage: Stage) -> None:
    (handle,) = stage.app.enqueue_many(
        [Submission("dawdle", f'{{"seconds": {STALL_SECONDS}}}', lease_seconds=LEASE_SECONDS)]
    )
    # While B is at work A comes back: once B is done, even a protocol without a fence would find nothing to overwrite.
    with stage.barrier("A is done"):
        with stage.barrier("B runs"):
            a = stage.worker("A", queues=["default=1"], once=True, mute=True, faults=["before_complete_sent=barrier:B runs"])
            stage.wait_for_arrival("B runs")
            b = stage.worker("B", once=True, faults=["before_complete_sent=barrier:A is done"])
            stage.wait_for_arrival("A is done")
        stage.wait_for(lambda: a.saw("stale_write_blocked") or not a.alive, "A has tried to write")
    for actor in (a, b):
        actor.wait()
    job = stage.app.job(handle.id)
    if a.saw("stale_write_blocked"):
        stage.verdict.took_effect("heartbeat of A muted")
    stage.verdict.expect("rows in the ledger", stage.value("select count(*) from faultline.ledger"), 1)
    stage.verdict.expect("state of the job", job.state, JobState.SUCCEEDED)
    stage.verdict.expect("token in the ledger", job.fencing_token, 2)
    stage.verdict.expect("result in the ledger", job.result, {"token": 2})
    stage.verdict.expect("writes refused and on record", stage.refusals(handle.id), [("complete", "token_mismatch")])
    stage.expect_sound()


DRILLS = (Drill("lease-race", "a worker stalls past its lease, another takes over, the first comes back", lease_race),)

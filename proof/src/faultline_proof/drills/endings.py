"""Jobs that are handed in more than once, and jobs that fail again and again: each ends once, and as often as was asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

from faultline.app.application import Faultline
from faultline.core.errors import KeyConflict
from faultline.core.faults import Faults, WireCut
from faultline.core.model import Submission
from faultline.store.reads import views
from faultline_proof.drill import Drill

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.app.handle import JobHandle
    from faultline_proof.stage import Stage

SUBMITTERS = 8


def duplicate_submission(stage: Stage) -> None:
    stage.make_effects()
    stage.worker("A")
    first = _at_once(stage, _charge(1, key="order:1"), first_commits=True)
    second = _at_once(stage, _charge(2, key="order:2"), first_commits=False)
    for name, handles in (("is committed", first), ("is rolled back", second)):
        claim = (
            f"jobs of {SUBMITTERS} submitters at once, the first of which {name}, and how many were told that theirs is new"
        )
        found = (len({handle.id for handle in handles}), sum(handle.created for handle in handles))
        stage.verdict.expect(claim, found, (1, 1))
    lost = [_answer_lost(stage, _charge(3, key="order:3")), _answer_lost(stage, _charge(4))]
    stage.wait_for_end(first[0].id, second[0].id)
    late = stage.app.enqueue_many([_charge(1, key="order:1"), _charge(3, key="order:3")])
    told = [handle.created for handle in (*lost, *late)]
    stage.verdict.expect("submitted again after they had finished: told that theirs is new", told, [False] * 4)
    known = [handle.id for handle in late] == [first[0].id, lost[0].id]
    stage.verdict.expect("and given the jobs that they had made before", known, wanted=True)
    try:
        refused = str(stage.app.enqueue_many([_charge(5, key="order:1")]))
    except KeyConflict:
        refused = "refused"
    stage.verdict.expect("the same key with other arguments", refused, "refused")
    # Whoever has run what came later has seen all there was to run.
    stage.wait_for_end(stage.app.enqueue_many([_charge(6)])[0].id)
    stage.verdict.expect("effects, (account, token)", stage.effects(), [(n, 1) for n in (1, 2, 3, 4, 6)])
    stage.verdict.expect("jobs in all", stage.app.database.run(views.counts()), {"succeeded": 5})
    stage.expect_sound()


def _charge(account: int, key: str | None = None) -> Submission:
    return Submission("apply", f'{{"account": {account}}}', idempotency_key=key)


def _at_once(stage: Stage, submission: Submission, *, first_commits: bool) -> list[JobHandle[None]]:
    """One submitter's transaction is open; the others come with the same key and wait for what becomes of it."""

    def submit(_: int) -> JobHandle[None]:
        with Faultline(stage.dsn, host=stage.host()) as client:
            return client.enqueue_many([submission])[0]

    with ThreadPoolExecutor(SUBMITTERS) as threads, stage.app.database.connect() as session:
        session.execute("begin")
        first = stage.app.using(session).enqueue_many([submission])
        others = [threads.submit(submit, number) for number in range(SUBMITTERS - first_commits)]
        stage.wait_for(lambda: stage.value(_WAITING) == len(others), "all other submitters wait for the first")
        stage.verdict.took_effect("submitters that met one of the same key in mid-flight", len(others))
        session.execute("commit" if first_commits else "rollback")
        return [*(first if first_commits else []), *(other.result() for other in others)]


_WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'transactionid'"


class LostAnswer(Faults):
    """The wire of the first enqueue is cut: the server has committed it, and by the time that this matters it is done."""

    wanted = True

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self.happened = False

    def reach(self, point: str) -> None:
        if point == "after_enqueue_committed" and not self.happened:
            self.happened = True
            self._meanwhile()
            raise WireCut(point)


def _answer_lost(stage: Stage, submission: Submission) -> JobHandle[None]:
    """Submit, lose the answer, and let the client send again once the job has been run to its end."""
    done = len(stage.effects())
    faults = LostAnswer(lambda: stage.wait_for(lambda: len(stage.effects()) > done, "the job is done"))
    with Faultline(stage.dsn, host=stage.host(faults=faults)) as client:
        (handle,) = client.enqueue_many([submission])
    if faults.happened:
        stage.note("fault_took_effect", point="after_enqueue_committed", action="cut", job_id=handle.id)
    return handle


STATES = ("queued", "queued", "failed")
#: What the task asks for after its first and second attempt.
WAITS_SECONDS = [0.1, 0.2]
#: A worker that sleeps looks again after 0.6 s at most; the rest is what a busy machine may take.
LATE_SECONDS_MAX = 1.5


def repeated_failure(stage: Stage) -> None:
    (handle,) = stage.app.enqueue_many([Submission("always_fail", max_attempts=len(STATES))])
    worker = stage.worker("A")
    stage.wait_for_end(handle.id)
    # Whoever has run what came later has seen all there was to run.
    stage.wait_for_end(stage.app.enqueue_many([Submission("nothing")])[0].id)
    job, journal = stage.app.job(handle.id), stage.journal(handle.id)
    started = [token for job_id, token in worker.starts() if job_id == handle.id]
    stage.verdict.took_effect("attempt that raised", len(started))
    stage.verdict.expect("attempts that were run, by token", started, [1, 2, 3])
    stage.verdict.expect("the job", f"{job.state} after {job.attempt} attempts", "failed after 3 attempts")
    stage.verdict.expect("its last error", str(job.last_error).partition("\n")[0], "RuntimeError: as always")
    told = [(entry.event, entry.fencing_token, entry.detail["attempt"], entry.detail["state"]) for entry in journal]
    wanted = [("attempt_failed", number, number, state) for number, state in enumerate(STATES, start=1)]
    stage.verdict.expect("journal, (event, token, attempt, state)", told, wanted)
    due = [datetime.fromisoformat(entry.detail["next_run_at"]) for entry in journal[:-1]]
    waits = [round((at - entry.at).total_seconds(), 1) for at, entry in zip(due, journal[:-1], strict=True)]
    stage.verdict.expect("seconds to wait after each attempt", waits, WAITS_SECONDS)
    late = [round((entry.at - at).total_seconds(), 3) for at, entry in zip(due, journal[1:], strict=True)]
    claim = f"seconds from then until the next attempt has failed, none early, none over {LATE_SECONDS_MAX}"
    stage.verdict.holds(claim, late, holds=all(0 <= seconds <= LATE_SECONDS_MAX for seconds in late))
    stage.expect_sound()


DRILLS = (
    Drill(
        "duplicate-submission",
        "one job is handed in many times: at once, after a lost answer, after its end",
        duplicate_submission,
    ),
    Drill("repeated-failure", "a job fails whenever it is run", repeated_failure),
)

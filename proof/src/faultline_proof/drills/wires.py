"""Answers that never came: the wire fails while something is committed, and nobody here knows whether it was."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from faultline.app.application import Faultline
from faultline.core.model import Submission
from faultline_proof.drill import Drill
from faultline_proof.proxy import Cut, Moment, Proxy, noticing_silence_after

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.stage import Actor, Stage

#: A client's submission, a worker's completion, and the commit of a job that completes in its own transaction.
STATEMENTS = (r"faultline\.enqueue_many\(", r"faultline\.complete\(", "^commit$")


@dataclass(frozen=True, slots=True)
class Part:
    """One way to fail, tried on all three statements. It has a wire, a worker and a queue of its own."""

    name: str
    account: int
    moment: Moment
    silently: bool = False


PARTS = (
    Part("answer lost", 1, Moment.AFTER_COMMITTED),
    Part("request lost", 2, Moment.BEFORE_SENT),
    Part("half-open after the commit", 3, Moment.AFTER_COMMITTED, silently=True),
    Part("half-open before it", 4, Moment.BEFORE_SENT, silently=True),
)


@dataclass(frozen=True, slots=True)
class Played:
    worker: Actor
    cuts: list[Cut]
    submitted: UUID
    completed: UUID
    credited: UUID


def ambiguous_commit(stage: Stage, task: str = "credit") -> None:
    stage.make_effects()
    with ThreadPoolExecutor(len(PARTS)) as threads:
        all_played = list(threads.map(lambda part: _play(stage, part, task), PARTS))
    for part, played in zip(PARTS, all_played, strict=True):
        for cut in played.cuts:
            if cut.happened.is_set():
                stage.verdict.took_effect(cut.what)
        runs = Counter(event["job_id"] for event in played.worker.events() if event["event"] == "execution_started")
        job_ids = (played.submitted, played.completed, played.credited)
        # Only a transaction that never was committed is run again; what had been run already is not.
        again = 1 if part.moment is Moment.BEFORE_SENT else 0
        expected = [(1, 1, 1), (1, 1, 1), (1 + again, 1 + again, 1)]
        jobs = [stage.app.job(job_id) for job_id in job_ids]
        found = [(runs[str(job.id)], job.fencing_token, job.attempt) for job in jobs]
        stage.verdict.expect(f"{part.name}: jobs enqueued", _jobs(stage, part), len(job_ids))
        stage.verdict.expect(f"{part.name}: runs, token and attempts used of each job", found, expected)
        effects = [effect for effect in stage.effects() if effect[0] == part.account]
        stage.verdict.expect(f"{part.name}: effects", effects, [(part.account, 1 + again)])
        refused = [refusal for job_id in job_ids for refusal in stage.refusals(job_id)]
        stage.verdict.expect(f"{part.name}: writes refused", refused, [])
    rows = stage.value("select count(*) from faultline.ledger")
    stage.verdict.expect("rows in the ledger", rows, len(PARTS) * len(STATEMENTS))
    stage.expect_sound()


def _play(stage: Stage, part: Part, task: str) -> Played:
    proxy = stage.keep(Proxy(stage.dsn, tell=stage.note))
    completed, credited = stage.app.enqueue_many(
        [
            Submission("nothing", queue=part.name),
            Submission(task, f'{{"account": {part.account}}}', queue=part.name),
        ]
    )
    cuts = [proxy.cut(pattern, part.moment, silently=part.silently) for pattern in STATEMENTS]
    worker = stage.worker(part.name, queues=[f"{part.name}=10"], dsn=proxy.dsn, patience=1)
    with Faultline(proxy.dsn, host=stage.host(noticing_silence_after(1))) as client:
        (submitted,) = client.enqueue_many([Submission("nothing", queue=part.name)])
    if part.silently and part.moment is Moment.BEFORE_SENT:
        # To the server the transaction is still open, with the job's row locked. The worker knows better and gives the job
        # back, for the task has not failed. It has to wait until the server gives up on its end.
        stage.wait_for(lambda: proxy.passed(r"faultline\.release\(") > 0, "the worker gives the job back")
        proxy.end_silent_wires()
    stage.wait_for_end(submitted.id, completed.id, credited.id)
    return Played(worker, cuts, submitted.id, completed.id, credited.id)


def _jobs(stage: Stage, part: Part) -> int:
    return int(stage.value("select count(*) from faultline.jobs where queue = %s", part.name))


DRILLS = (
    Drill(
        "ambiguous-commit",
        "the wire fails while a submission, a completion and a job's own transaction are committed",
        ambiguous_commit,
    ),
    Drill(
        "ambiguous-commit-blocking",
        "ambiguous-commit with a blocking task that completes in its own transaction",
        partial(ambiguous_commit, task="credit_in_thread"),
    ),
)

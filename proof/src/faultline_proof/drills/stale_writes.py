"""Every write under a lost lease, in every way to lose one: nothing of the job changes, and the refusal is on record.

No processes, only sessions stepped one by one: quick enough to be played against many broken protocols.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from faultline.core.errors import StaleLease
from faultline.core.model import Failure, Lease, Reason, Refusal, Submission, Unwritten
from faultline.store import verbs
from faultline.store.database import run_on
from faultline.store.reads import views
from faultline_proof.drill import Drill
from faultline_proof.reads import proving

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from faultline.store.statement import Statement
    from faultline_proof.stage import Stage

    Session = Any  # a psycopg connection

#: As short as a lease may be, for those that are to run out; long enough for the whole drill, for the others.
SHORT_SECONDS, LONG_SECONDS = 0.1, 600.0

VERBS: dict[str, Callable[[Lease], Statement[Unwritten]]] = {
    "renew": lambda lease: verbs.renew([lease]),
    "record_start": lambda lease: verbs.record_start([lease]),
    "step": lambda lease: verbs.step(lease, "stale", 1),
    "progress": lambda lease: verbs.progress(lease, {"percent": 50}),
    "fail": lambda lease: verbs.fail([lease], [Failure("stale")]),
    "release": lambda lease: verbs.release([lease]),
    "complete": lambda lease: verbs.complete([lease], ['"stale"']),
}
WRITES = (*VERBS, "fence")


def stale_writes(stage: Stage) -> None:
    with stage.app.database.connect() as session:
        accepted = [verb for verb, lease in _claimed(session, "good").items() if not _write(session, verb, lease)]
        stage.verdict.expect("writes accepted under a good lease", accepted, list(WRITES))
        held = {loss: _claimed(session, loss.name, SHORT_SECONDS if loss.reaped else LONG_SECONDS) for loss in LOSSES}
        _wait_until_reaped(stage, session, [lease for loss in LOSSES if loss.reaped for lease in held[loss].values()])
        for loss, leases in held.items():
            stale = dict(zip(leases, loss.then(session, loss.name, list(leases.values())), strict=True))
            stage.verdict.took_effect("lease lost before its holder wrote", len(stale))
            _expect_refusals(stage, session, loss, stale)
        _expect_an_expired_lease_to_guard_no_new_effects(stage, session)
    stage.expect_sound()


def _expect_refusals(stage: Stage, session: Session, loss: Loss, stale: dict[str, Lease]) -> None:
    """Let every verb try, each on a job of its own."""
    ids = [lease.job_id for lease in stale.values()]
    before = run_on(session, proving.whole(ids))
    refused = {verb: _write(session, verb, lease) for verb, lease in stale.items()}
    after = run_on(session, proving.whole(ids))
    wrong = []
    for verb, lease in stale.items():
        wanted = [] if verb in loss.told_as_done else [(loss.reason, loss.current_token)]
        if [(refusal.reason, refusal.current_token) for refusal in refused[verb]] != wanted:
            wrong.append(f"{verb} was answered with {refused[verb]}")
        if after[lease.job_id] != before[lease.job_id]:
            wrong.append(f"{verb} changed the job")
        record = [(verb, lease.owner, lease.fencing_token, reason.value, token) for reason, token in wanted]
        if _on_record(session, lease.job_id) != record:
            wrong.append(f"{verb} is not rightly on record")
        for refusal in refused[verb]:
            _note(stage, verb, refusal, loss.name)
    promise = f"every write is refused as {loss.reason}, on record, and changes nothing"
    if loss.told_as_done:
        promise += f" ({' and '.join(loss.told_as_done)}: done already, told so)"
    stage.verdict.expect(f"{loss.name}: {promise}; not so", wrong, [])


def _expect_an_expired_lease_to_guard_no_new_effects(stage: Stage, session: Session) -> None:
    """Run out, but nobody has taken the job: the holder may still finish it, and may begin nothing new."""
    lease = _claimed(session, "expired", SHORT_SECONDS)["fence"]
    stage.wait_for_lapse(lease.job_id)
    refused = _write(session, "fence", lease)
    for refusal in refused:
        _note(stage, "fence", refusal, "expired")
    stage.verdict.expect(
        "expired, not yet taken back: a fence is refused as", [refusal.reason for refusal in refused], [Reason.LEASE_EXPIRED]
    )


def _claimed(session: Session, name: str, lease_seconds: float = LONG_SECONDS) -> dict[str, Lease]:
    """One job for each verb, claimed by the worker that will come too late."""
    run_on(session, verbs.enqueue_many([Submission("nothing", queue=name, lease_seconds=lease_seconds)] * len(WRITES)))
    return dict(zip(WRITES, _claim(session, name, "late/1"), strict=True))


def _claim(session: Session, name: str, owner: str) -> list[Lease]:
    return run_on(session, verbs.claim(name, owner=owner, max_jobs=len(WRITES)))


def _wait_until_reaped(stage: Stage, session: Session, leases: list[Lease]) -> None:
    stage.wait_for_lapse(*(lease.job_id for lease in leases))
    reaped = run_on(session, verbs.reap(notice_dead=False))
    if {job.job_id for job in reaped} != {lease.job_id for lease in leases}:
        raise AssertionError(f"{len(leases)} leases had run out, and a reaper took {len(reaped)} jobs")


def _write(session: Session, verb: str, lease: Lease) -> list[Refusal]:
    if verb == "fence":
        try:
            run_on(session, verbs.fence(lease))
        except StaleLease as refused:
            # Raising has undone everything: the record is a call of its own.
            run_on(session, verbs.record_refusal(lease))
            return [Refusal(lease, Reason(str(refused.reason)), refused.current_token)]
        return []
    return run_on(session, VERBS[verb](lease)).stale


def _on_record(session: Session, job_id: UUID) -> list[tuple[str, str | None, int | None, str, int]]:
    entries = [entry for entry in run_on(session, views.journal(job_id)) if entry.event == "stale_write_blocked"]
    return [
        (e.detail["verb"], e.owner, e.fencing_token, e.detail["reason"], e.detail["current_token"])
        for e in entries
        if e.detail["stale_token"] == e.fencing_token
    ]


def _note(stage: Stage, verb: str, refusal: Refusal, loss: str) -> None:
    stage.note(
        "stale_write_blocked",
        job_id=refusal.lease.job_id,
        stale_token=refusal.lease.fencing_token,
        current_token=refusal.current_token,
        reason=refusal.reason.value,
        verb=verb,
        lease=loss,
    )


# Ways to lose a lease


def _nobody(_: Session, __: str, leases: list[Lease]) -> list[Lease]:
    return leases


def _taken_by(owner: str) -> Callable[[Session, str, list[Lease]], list[Lease]]:
    def take(session: Session, name: str, leases: list[Lease]) -> list[Lease]:
        _claim(session, name, owner)
        return leases

    return take


def _done_by_another(session: Session, name: str, leases: list[Lease]) -> list[Lease]:
    run_on(session, verbs.complete(_claim(session, name, "another/1"), ["null"] * len(leases)))
    return leases


def _cancelled_under_another(session: Session, name: str, leases: list[Lease]) -> list[Lease]:
    _claim(session, name, "another/1")
    return _cancelled(session, name, leases)


def _cancelled(session: Session, _: str, leases: list[Lease]) -> list[Lease]:
    for lease in leases:
        run_on(session, verbs.cancel(lease.job_id))
    return leases


def _released(session: Session, _: str, leases: list[Lease]) -> list[Lease]:
    run_on(session, verbs.release(leases))
    return leases


def _done(session: Session, _: str, leases: list[Lease]) -> list[Lease]:
    run_on(session, verbs.complete(leases, ["null"] * len(leases)))
    return leases


def _failed(session: Session, _: str, leases: list[Lease]) -> list[Lease]:
    run_on(session, verbs.fail(leases, [Failure("for good", then="fail")] * len(leases)))
    return leases


def _forgotten(_: Session, __: str, leases: list[Lease]) -> list[Lease]:
    return [replace(lease, owner="forgotten/1") for lease in leases]


@dataclass(frozen=True, slots=True)
class Loss:
    """How a lease was lost. A stale token is a mismatch before it is anything else, whatever has become of the job since."""

    name: str
    reason: Reason
    #: What happens next; answers with the leases in the hands of the one who comes too late.
    then: Callable[[Session, str, list[Lease]], list[Lease]]
    #: First the lease runs out and the job is taken back.
    reaped: bool
    current_token: int
    #: The verbs that find the job done under their own lease and are told so. The first answer to `complete` may have been
    #: lost; a job that completed itself goes on for a while, and its lease is renewed until its worker knows.
    told_as_done: tuple[str, ...] = ()


LOSSES = (
    Loss("reaped, not yet taken", Reason.LEASE_LOST, _nobody, reaped=True, current_token=1),
    Loss("released, not yet taken", Reason.LEASE_LOST, _released, reaped=False, current_token=1),
    Loss("taken by another worker", Reason.TOKEN_MISMATCH, _taken_by("another/1"), reaped=True, current_token=2),
    Loss("taken by the same worker", Reason.TOKEN_MISMATCH, _taken_by("late/2"), reaped=True, current_token=2),
    # Owners are new for every claim. Should a client not keep to that, the token alone still decides.
    Loss("taken under the same owner", Reason.TOKEN_MISMATCH, _taken_by("late/1"), reaped=True, current_token=2),
    # A failover that lost commits may grant a token a second time. Then the owner alone decides.
    Loss("granted in a history that was lost", Reason.TOKEN_MISMATCH, _forgotten, reaped=False, current_token=1),
    Loss("done by another worker", Reason.TOKEN_MISMATCH, _done_by_another, reaped=True, current_token=2),
    Loss("taken by another, cancelled", Reason.TOKEN_MISMATCH, _cancelled_under_another, reaped=True, current_token=2),
    Loss("cancelled", Reason.NOT_RUNNING, _cancelled, reaped=False, current_token=1),
    Loss("failed for good", Reason.NOT_RUNNING, _failed, reaped=False, current_token=1),
    Loss("done by itself", Reason.NOT_RUNNING, _done, reaped=False, current_token=1, told_as_done=("complete", "renew")),
)

DRILLS = (Drill("stale-writes", "eight kinds of writes under leases that were lost in eleven ways", stale_writes),)

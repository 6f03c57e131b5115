"""The verbs against a small model, in any order that chance comes up with: every answer is predicted, every job compared.

Leases are kept for ever and used again, good and stale ones alike. One database serves all examples of a run: what an
example leaves behind is forgotten before the next.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from faultline.core.errors import FaultlineError, KeyConflict, StaleLease
from faultline.core.ids import Ids
from faultline.core.model import Bound, Failure, JobState, Submission
from faultline.store import jsontext, verbs
from tests import servers
from tests.schema.conftest import BETWEEN
from tests.schema.model import Model, Refused

if TYPE_CHECKING:
    from faultline.core.model import Lease, Unwritten
    from faultline.store.statement import Statement
    from tests.driver import Clock, Driver

EXAMPLES = settings(max_examples=80, stateful_step_count=40, deadline=None, derandomize=True)  # in every run the same

#: One rule that chooses among all moves, weighted by hand. Rules of their own would be switched off at random, most of them
#: in most examples, which is of use to those who have thousands of examples to spend.
#: The id of a submission that comes again.
ONES = UUID("00000000-0000-7000-8000-000000000001")
MOVES = [
    *("enqueue", "enqueue", "claim", "claim", "keep", "keep", "keep", "settle", "settle"),
    *("time_passes", "time_passes", "reap", "reap", "operate", "operate"),
]
seeds = st.integers(0, 2**32)


class Verbs(RuleBasedStateMachine):
    def __init__(self, queue: Driver, clock: Clock) -> None:
        super().__init__()
        forget_everything(queue)
        self.queue = queue
        self.clock = clock
        self.model = Model(queue.value("select faultline.now()"))
        self.jobs: list[UUID] = []
        self.leases: list[Lease] = []
        self.calls = itertools.count(1)
        self.first_seed = 0
        self.acts: Counter[tuple[str, int]] = Counter()
        self.went_well = True

    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        self.first_seed = seed
        for _ in range(4):
            self.act("enqueue", seed)
        self.act("claim", seed)

    @rule(move=st.sampled_from(MOVES), seed=seeds)
    def act(self, move: str, seed: int) -> None:
        # Hypothesis likes to try the same number again: the second time, and in another example, it means something else.
        self.acts[move, seed] += 1
        self.went_well = False
        getattr(self, move)(Random(f"{self.first_seed} {seed} {self.acts[move, seed]}"))
        self.went_well = True

    # Submissions

    def enqueue(self, chance: Random) -> None:
        job = Submission(
            "t",
            chance.choice(['{"n":1}', '{"n":1}', '{"n":2}']),
            queue="q",
            priority=chance.choice([-1, 0, 0, 0, 1]),
            delay_seconds=chance.choice([None, None, 5]),
            max_attempts=chance.randint(1, 3),
            lease_seconds=chance.choice([1.0, 10.0, 30.0]),
        )
        match chance.choice(["fresh", "plain", "key", "id"]):
            case "key":
                self._enqueue_again(replace(job, idempotency_key=chance.choice("kl")))
            case "id":
                self._enqueue_again(replace(job, id=ONES))
            case way:
                (placed,) = self.queue.run(verbs.enqueue_many([job], Ids() if way == "fresh" else None))
                note(f"{job} is {placed}")
                assert placed.created
                self.model.enqueue(job, placed.job_id)
                self.jobs.append(placed.job_id)

    def _enqueue_again(self, job: Submission) -> None:
        note(f"{job}, perhaps again")
        try:
            known = self.model.known(job)
        except KeyConflict as conflict:
            self._raises(verbs.enqueue_many([job]), type(conflict))
            return
        (placed,) = self.queue.run(verbs.enqueue_many([job]))
        assert placed == (known or job.id or placed.job_id, known is None)
        if known is None:
            self.model.enqueue(job, placed.job_id)
            self.jobs.append(placed.job_id)

    # Leases

    def claim(self, chance: Random) -> None:
        owner = f"{chance.choice('ab')}/{next(self.calls)}"
        most = chance.randint(1, 5)
        jobs = list(self.model.jobs.values())
        bounded = chance.sample([-1, 0, 1], chance.choice([0, 0, 1, 2])) if jobs else []
        bounds = {at: Bound(at, chance.choice(jobs).next_run_at, chance.choice(jobs).id) for at in bounded}

        granted = self.queue.run(verbs.claim("q", owner=owner, max_jobs=most, bounds=list(bounds.values())))

        note(f"{owner} claims {most} from {bounds} and gets {granted}")
        assert [
            (
                it.job_id,
                it.fencing_token,
                it.owner,
                it.attempt,
                it.max_attempts,
                it.needs_start_record,
                it.reaps,
                it.next_run_at,
            )
            for it in granted
        ] == [
            (it.id, it.token, owner, it.attempt, it.max_attempts, it.is_to_be_marked, it.reaps, it.next_run_at)
            for it in self.model.claim(owner, most, bounds)
        ]
        self.leases += granted

    def keep(self, chance: Random) -> None:
        """Write, and keep the leases."""
        verb = chance.choice(["renew", "record_start", "record_start", "step", "progress", "fence", "fence"])
        leases = self._some_leases(chance, verb)
        value = chance.choice([None, 1, {"percent": 50}])
        match verb if leases else None:
            case "renew":
                assert refusals(self.queue.renew(*leases)) == self.model.renew(leases)
            case "record_start":
                assert refusals(self.queue.record_start(*leases)) == self.model.record_start(leases)
            case "step":
                self._step(leases[0], chance.choice(["quote", "pay"]), value)
            case "progress":
                unwritten = self.queue.run(verbs.progress(leases[0], value))
                assert refusals(unwritten) == self.model.progress(leases[0], value)
            case "fence":
                self._fence(leases[0])

    def settle(self, chance: Random) -> None:
        """Write for the last time."""
        verb = chance.choice(["complete", "fail", "release"])
        leases = self._some_leases(chance, verb)
        value, delay = chance.choice([None, 1]), chance.choice([None, None, 0, 5])
        match verb if leases else None:
            case "complete":
                # One result for each job: of a lease that stands twice, either may be kept.
                results = [value and [str(lease.job_id), value] for lease in leases]
                texts = [jsontext.encode(result, "result") for result in results]
                assert refusals(self.queue.run(verbs.complete(leases, texts))) == self.model.complete(leases, results)
            case "fail":
                failure = Failure("boom", chance.choice(["retry", "retry", "fail", "cancel"]), delay)
                unwritten = self.queue.run(verbs.fail(leases, [failure] * len(leases)))
                assert refusals(unwritten) == self.model.fail(leases, failure)
            case "release":
                unwritten = self.queue.release(*leases, delays=[delay] * len(leases))
                assert refusals(unwritten) == self.model.release(leases, delay)

    def _some_leases(self, chance: Random, verb: str) -> list[Lease]:
        """Good ones, any that was ever granted, and some that never were. One may stand twice, or beside its successor."""
        good = [lease for lease in self.leases if self.model.holding(lease)]
        pools = [good, good, self.leases] if good else [self.leases]
        leases = [chance.choice(chance.choice(pools)) for _ in range(chance.randint(1, 4) if self.leases else 0)]
        if leases and chance.random() < 0.3:
            forged = {"owner": "c/1"} if chance.random() < 0.5 else {"fencing_token": leases[0].fencing_token + 1}
            leases[0] = replace(leases[0], **forged)
        note(f"{verb} with {leases}")
        return leases

    def _step(self, lease: Lease, name: str, result: Any) -> None:
        unwritten = self.queue.run(verbs.step(lease, name, result))

        assert refusals(unwritten) == self.model.step(lease, name, result)
        job = self.model.jobs.get(lease.job_id)
        steps = {} if job is None else job.steps
        assert self.queue.run(verbs.recall(lease, name)) == (name in steps, steps.get(name))

    def _fence(self, lease: Lease) -> None:
        refusal = self.model.fence(lease)

        if refusal is None:
            self.queue.run(verbs.fence(lease))
        else:
            error = self._raises(verbs.fence(lease), StaleLease)
            assert (error.reason, error.current_token) == refusal
        recorded = refusals(self.queue.run(verbs.record_refusal(lease)))
        assert recorded == self.model.record_refusal(lease)

    # What others do

    def time_passes(self, chance: Random) -> None:
        """Often to the very moment when something changes."""
        now, jobs = self.model.now, self.model.jobs.values()
        moments = {job.next_run_at for job in jobs} | {job.expires_at for job in jobs if job.expires_at is not None}
        ahead = sorted(moment for moment in moments if moment > now)
        moment = chance.choice([*ahead[:3], now + timedelta(seconds=0.5)])
        self.clock.advance((moment - now).total_seconds())
        self.model.now = moment
        note(f"it is {moment}")

    def reap(self, chance: Random) -> None:
        self.time_passes(chance)
        most = chance.choice([1, 1000, 1000])
        expired = {job.id: job for job in self.model.expired()}

        reaped = self.queue.reap(max_jobs=most)

        note(f"reaped {reaped}")
        # Of leases that ran out at the same moment any may be taken first.
        lost = [expired[job.job_id] for job in reaped]
        assert sorted(str(job.expires_at) for job in lost) == sorted(str(job.expires_at) for job in expired.values())[:most]
        answer = {(job.job_id, job.fencing_token, job.owner, job.state) for job in reaped}
        assert answer == self.model.reap(lost)

    def operate(self, chance: Random) -> None:
        ended = [job.id for job in self.model.jobs.values() if job.state.ended]
        job_id = chance.choice(chance.choice([self.jobs, ended or self.jobs]))
        verb = chance.choice(["cancel", "cancel", "retry", "retry", "retry", "recover", "ledger", "failed", "keys"])
        note(f"{verb}, perhaps of {job_id}")
        match verb:
            case "cancel":
                self._answers(verbs.cancel(job_id, "not needed"), self.model.cancel(job_id))
            case "retry":
                self._answers(verbs.retry(job_id), self.model.retry(job_id))
            case "recover":
                floor = chance.randint(0, 1 + max((job.token for job in self.model.jobs.values()), default=0))
                assert self.queue.run(verbs.recover(floor)) == self.model.recover(floor)
            case what:
                seconds = chance.choice([0, 5])
                gone = self.queue.run(verbs.prune(what, older_than_seconds=seconds))
                assert gone == self.model.prune(what, timedelta(seconds=seconds))

    # What must be true

    @invariant()
    def the_database_holds_what_the_model_holds(self) -> None:
        assert shown(self.queue) == {job.id: job.as_shown() for job in self.model.jobs.values()}

    def teardown(self) -> None:
        if not self.went_well:
            return  # or the first failure would be hidden by what follows from it
        rows = self.queue.connection.execute("select event, job_id, fencing_token, owner from faultline.journal").fetchall()
        assert Counter(rows) == self.model.journal
        rows = self.queue.connection.execute("select job_id, name, result from faultline.steps").fetchall()
        steps = {(job.id, name): result for job in self.model.jobs.values() for name, result in job.steps.items()}
        assert {(job_id, name): result for job_id, name, result in rows} == steps
        rows = self.queue.connection.execute("select key, job_id from faultline.keys").fetchall()
        assert dict(rows) == {key: job_id for key, (job_id, _, _) in self.model.keys.items()}
        assert self.queue.broken_invariants() == []

    def _answers(self, statement: Statement[JobState], expected: JobState | type[FaultlineError]) -> None:
        if isinstance(expected, JobState):
            assert self.queue.run(statement) is expected
        else:
            self._raises(statement, expected)

    def _raises(self, statement: Statement[Any], expected: type[FaultlineError]) -> Any:
        with pytest.raises(expected) as raised:
            self.queue.run(statement)
        return raised.value


def refusals(unwritten: Unwritten) -> Counter[Refused]:
    assert unwritten.busy == []
    return Counter((it.lease.job_id, it.lease.fencing_token, it.reason, it.current_token) for it in unwritten.stale)


def shown(queue: Driver) -> dict[UUID, tuple[Any, ...]]:
    rows = queue.connection.execute(
        "select id, state, fencing_token, owner, attempt, claimed_at, finished_at, result, idempotency_key,"
        " next_run_at, lease_expires_at, reaps, renewals, last_error, progress from faultline.jobs"
    ).fetchall()
    return {row[0]: row[1:] for row in rows}


def forget_everything(queue: Driver) -> None:
    """As `prune` would, with all guards on."""
    with queue.connection.transaction():
        queue.connection.execute("select faultline.set_current_verb('prune')")
        for table in ("open_jobs", "ledger", "journal", "steps", "keys"):
            queue.connection.execute(f"delete from faultline.{table}".encode())
        queue.connection.execute("select faultline.set_current_verb('')")
        queue.connection.execute("set local session_replication_role = replica")  # past the guard of the floor
        queue.connection.execute("update faultline.settings set token_floor = 0")


@pytest.mark.long
def test_every_verb_answers_and_does_what_the_model_says(queue: Driver, clock: Clock, server: str) -> None:
    class Here(Verbs):
        def __init__(self) -> None:
            super().__init__(queue, clock)

    fewer = server in map(servers.name_of, BETWEEN)
    run_state_machine_as_test(Here, settings=settings(EXAMPLES, max_examples=15) if fewer else EXAMPLES)

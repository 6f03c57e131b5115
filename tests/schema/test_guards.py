"""What the tables refuse, whoever asks, and what the roles may not even try."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import psycopg
import pytest

from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline.store.install import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from tests.driver import Driver, Sessions

COLUMNS = "id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue, task, args"
VALUES = "gen_random_uuid(), now(), now(), 30, 0, 5, true, 'default', 't', '{}'"


@pytest.fixture
def job_id(queue: Driver) -> UUID:
    """One job of every state: queued, running, failed, cancelled, done. The running one is named."""
    ids = [place.job_id for place in queue.run(verbs.enqueue_many([Submission("t")] * 5))]
    leases = queue.claim(4, worker="w")
    queue.fail(leases[1], then="fail")
    queue.fail(leases[2], then="cancel")
    queue.run(verbs.step(leases[3], "s", 1))
    queue.complete(leases[3])
    queue.enqueue(queue="other", idempotency_key="k")
    assert [queue.state(each) for each in ids] == ["running", "failed", "cancelled", "succeeded", "queued"]
    return ids[0]


CHANGES = [
    # an owner swap, with the same token or with a new one
    "update faultline.open_jobs set lease_owner = 'thief' where state = 'running'",
    "update faultline.open_jobs set lease_owner = 'thief', fencing_token = 2 where state = 'running'",
    "update faultline.open_jobs set fencing_token = 2 where state = 'running'",
    # a token that shrinks, or a claim that re-uses one
    "update faultline.open_jobs set fencing_token = fencing_token - 1 where fencing_token > 0 and state <> 'running'",
    (
        "update faultline.open_jobs set fencing_token = 0, state = 'queued', lease_owner = null, lease_expires_at = null"
        " where state = 'running'"
    ),
    (
        "update faultline.open_jobs set state = 'running', lease_owner = 'w/9', lease_expires_at = now(), attempt = 1"
        " where state = 'queued'"
    ),
    # unknown states and impossible combinations
    "update faultline.open_jobs set state = 'sleeping' where state = 'queued'",
    "update faultline.open_jobs set lease_owner = 'w' where state = 'queued'",
    "update faultline.open_jobs set lease_expires_at = null where state = 'running'",
    "update faultline.open_jobs set finished_at = now() where state = 'queued'",
    "update faultline.open_jobs set attempt = 99",
    "update faultline.open_jobs set attempt = -1",
    # transitions that are none
    "update faultline.open_jobs set state = 'failed', finished_at = now() where state = 'queued'",
    "update faultline.open_jobs set state = 'cancelled' where state = 'failed'",
    (
        "update faultline.open_jobs set state = 'running', lease_owner = 'w/9', lease_expires_at = now(),"
        " fencing_token = 9, finished_at = null where state = 'failed'"
    ),
    # identity
    "update faultline.open_jobs set task = 'other'",
    "update faultline.open_jobs set id = gen_random_uuid()",
    "update faultline.open_jobs set created_at = now() - interval '1 day'",
    # births that are none
    (
        f"insert into faultline.open_jobs ({COLUMNS}, state, lease_owner, lease_expires_at, fencing_token, attempt)"
        f" values ({VALUES}, 'running', 'w', now(), 1, 1)"
    ),
    f"insert into faultline.open_jobs ({COLUMNS}, fencing_token) values ({VALUES}, 5)",
    f"insert into faultline.open_jobs ({COLUMNS}, attempt) values ({VALUES}, 1)",
    f"insert into faultline.open_jobs ({COLUMNS}, fencing_token) values ({VALUES}, -1)",
    # deletions that are neither completion nor pruning
    "delete from faultline.open_jobs where state = 'queued'",
    "delete from faultline.open_jobs where state = 'running'",
    "delete from faultline.open_jobs where state = 'failed'",
    "truncate faultline.open_jobs",
    # the ledger, the journal and the steps from outside
    (
        "insert into faultline.ledger select id, 1, now(), now(), now(), 0, 1, 5, 'w', queue, task, null, args, null"
        " from faultline.open_jobs where state = 'queued'"
    ),
    "update faultline.ledger set result = '1'",
    "delete from faultline.ledger",
    "truncate faultline.ledger",
    "update faultline.journal set event = 'retried'",
    "delete from faultline.journal",
    "truncate faultline.journal",
    "truncate faultline.steps",
    "truncate faultline.keys",
    "insert into faultline.steps values (gen_random_uuid(), 's', 1, now(), null)",
    "update faultline.steps set result = '2'",
    "delete from faultline.steps",
    "delete from faultline.keys",
]


def test_the_tables_refuse_what_no_verb_does_even_from_their_owner(queue: Driver, job_id: UUID) -> None:
    before = _everything(queue)

    answers = {change: refusal(queue, change) for change in CHANGES}

    assert {change: answer for change, answer in answers.items() if answer not in {"FL002", "23514"}} == {}
    assert _everything(queue) == before


def refusal(queue: Driver, statement: str) -> str | None:
    """The code of the error with which it is refused; None: it was not."""
    try:
        queue.connection.execute(statement.encode())
    except psycopg.Error as error:
        return error.sqlstate
    return None


def _everything(queue: Driver) -> list[object]:
    return [
        queue.connection.execute(f"select * from faultline.{table} order by 1".encode()).fetchall()
        for table in ("open_jobs", "ledger", "journal", "steps", "keys")
    ]


def test_the_ledger_holds_a_job_once_whatever_the_verb_believes(queue: Driver, job_id: UUID) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation), queue.connection.transaction():
        queue.connection.execute("set local faultline.verb = 'complete'")
        queue.connection.execute("insert into faultline.ledger select * from faultline.ledger")


@pytest.mark.parametrize("verb", ["enqueue", "known id", "step", "complete", "prune", "reconcile"])
def test_a_verb_leaves_no_door_open_for_the_rest_of_its_transaction(queue: Driver, job_id: UUID, verb: str) -> None:
    lease = queue.claim_one()
    done = queue.value("select job_id from faultline.ledger")
    calls: dict[str, Callable[[], object]] = {
        "enqueue": queue.enqueue,
        "known id": lambda: queue.enqueue(id=done),
        "step": lambda: queue.run(verbs.step(lease, "s", 1)),
        "complete": lambda: queue.complete(lease),
        "prune": lambda: queue.run(verbs.prune("failed", older_than_seconds=3600)),
        "reconcile": lambda: queue.run(verbs.reconcile()),
    }

    with queue.connection.transaction():
        calls[verb]()
        for attempt in (
            "delete from faultline.open_jobs",
            "delete from faultline.ledger",
            "delete from faultline.keys",
            (
                "insert into faultline.ledger select gen_random_uuid(), 1, now(), now(), now(), 0, 1, 5, 'w', 'q', 't',"
                " null, '{}', null"
            ),
            "insert into faultline.steps values (gen_random_uuid(), 's', 1, now(), null)",
            f"insert into faultline.open_jobs ({COLUMNS}, fencing_token) values ({VALUES}, 5)",
        ):
            with pytest.raises(psycopg.Error, match="is refused"), queue.connection.transaction():
                queue.connection.execute(attempt.encode())


@pytest.mark.parametrize(
    ("damage", "broken"),
    [
        ("alter table faultline.open_jobs disable trigger token_grows", "the_guards_are_in_place"),
        ("alter table faultline.ledger disable trigger user", "the_guards_are_in_place"),
        ("drop trigger legal_transition on faultline.open_jobs", "the_guards_are_in_place"),
        (
            (
                "create or replace trigger identity_stays before update of renewals on faultline.open_jobs for each row"
                " when (old.id <> new.id) execute function faultline.refuse_change('')"
            ),
            "the_guards_are_in_place",
        ),
        (
            (
                "create or replace trigger token_grows before update of state, fencing_token on faultline.open_jobs"
                " for each row when (false) execute function faultline.refuse_change('')"
            ),
            "the_guards_are_in_place",
        ),
        (
            (
                "drop trigger never_emptied on faultline.keys;"
                " create trigger never_emptied before truncate on faultline.keys for each statement when (false)"
                " execute function faultline.refuse_change('keys are not thrown away')"
            ),
            "the_guards_are_in_place",
        ),
        ("alter domain faultline.state drop constraint known_state", "the_guards_are_in_place"),
        ("alter table faultline.ledger drop constraint ledger_pkey", "the_guards_are_in_place"),
    ],
)
def test_a_guard_that_was_taken_away_is_noticed(queue: Driver, damage: str, broken: str) -> None:
    assert queue.broken_invariants() == []

    queue.connection.execute(damage.encode())

    assert queue.broken_invariants() == [broken]


@pytest.mark.parametrize(
    "damage",
    ["delete from faultline.keys", "update faultline.keys set job_id = gen_random_uuid()"],
    ids=["lost", "of another"],
)
def test_an_open_job_without_the_row_of_its_key_is_noticed(queue: Driver, damage: str) -> None:
    queue.enqueue()
    queue.enqueue(idempotency_key="k")
    assert queue.broken_invariants() == []

    with queue.connection.transaction():
        queue.connection.execute("set local session_replication_role = replica")
        queue.connection.execute(damage.encode())

    assert queue.broken_invariants() == ["a_key_is_kept_while_its_job_is_open"]


def test_every_trigger_is_known_to_the_invariant_and_to_the_doctor(queue: Driver) -> None:
    triggers = queue.connection.execute(
        "select c.relname || '.' || t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " where c.relnamespace = 'faultline'::regnamespace and not t.tgisinternal"
    ).fetchall()

    for table in {name.partition(".")[0] for (name,) in triggers}:
        queue.connection.execute(f"alter table faultline.{table} disable trigger all".encode())

    text = resources.files("faultline.schema").joinpath("invariants", "the_guards_are_in_place.sql").read_text()
    missed = {row[0].partition(" of ")[0] for row in queue.connection.execute(text.encode()).fetchall()}
    assert missed == {name for (name,) in triggers}
    guards = queue.run(installed.guards())
    assert set(guards) == {name for (name,) in triggers}


# The clock


def test_no_session_can_move_the_databases_idea_of_time(queue: Driver) -> None:
    job_id = queue.enqueue()
    queue.claim_one()
    for setting in ("faultline.now", "faultline.clock", "faultline.time", "faultline.test_now"):
        queue.connection.execute("select set_config(%s, '2100-01-01', false)", (setting,))

    assert queue.value("select faultline.now() = statement_timestamp() and faultline.clock() < now() + interval '1 minute'")
    assert queue.reap() == []
    assert queue.state(job_id) is JobState.RUNNING


def test_a_clock_that_was_replaced_is_noticed(queue: Driver) -> None:
    from faultline.store.reads import invariants  # noqa: PLC0415

    queue.connection.execute(
        "create or replace function faultline.clock() returns timestamptz language sql volatile"
        " return '2100-01-01'::timestamptz"
    )

    assert [v.invariant for v in invariants.violations(queue.run)] == ["the_clock_is_the_servers"]


def test_now_is_an_index_condition(queue: Driver) -> None:
    queue.connection.execute("set enable_seqscan = off")

    plan = queue.value(
        "explain (format json) select from faultline.open_jobs"
        " where queue = 'q' and state = 'queued' and priority = 0 and next_run_at <= faultline.now()"
    )

    assert "next_run_at <= statement_timestamp()" in str(plan)


# Roles


@pytest.fixture
def role(queue: Driver, request: pytest.FixtureRequest) -> Iterator[Driver]:
    queue.connection.execute(f"set role faultline_{request.param}".encode())
    yield queue
    queue.connection.execute("reset role")


ATTEMPTS = [
    "insert into faultline.open_jobs (id) values (gen_random_uuid())",
    "update faultline.open_jobs set fencing_token = 99",
    "delete from faultline.open_jobs",
    "insert into faultline.ledger (job_id) values (gen_random_uuid())",
    "delete from faultline.ledger",
    "delete from faultline.journal",
    "insert into faultline.keys values ('k', gen_random_uuid(), '', now())",
    "update faultline.workers set beat_at = now()",
    "update faultline.settings set args_bytes_max = 2000",
    "truncate faultline.open_jobs",
    "create or replace function faultline.now() returns timestamptz language sql return '2100-01-01'::timestamptz",
    "select faultline.refuse('complete', '{}', '{}', '{}', '{}')",
    "select faultline.hold(gen_random_uuid(), 1, 'w')",
    "select faultline.withdraw_done('{}', '{}')",
]


@pytest.mark.parametrize("role", ["producer", "worker", "viewer", "operator"], indirect=True)
def test_no_role_may_touch_a_table_or_go_behind_a_verb(role: Driver) -> None:
    answers = {attempt: refusal(role, attempt) for attempt in ATTEMPTS}

    assert answers == dict.fromkeys(ATTEMPTS, psycopg.errors.InsufficientPrivilege.sqlstate)


@pytest.mark.parametrize("role", ["producer"], indirect=True)
def test_a_producer_enqueues_and_cancels_and_cannot_claim(role: Driver) -> None:
    job_id = role.enqueue(idempotency_key="k")
    assert role.enqueue(idempotency_key="k") == job_id
    role.run(verbs.cancel(job_id))

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        role.claim()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        role.reap()


@pytest.mark.parametrize("role", ["worker"], indirect=True)
def test_a_worker_can_do_all_that_a_worker_does_and_not_what_an_operator_does(role: Driver) -> None:
    for _ in range(4):
        role.enqueue()
    done, failed, released, kept = role.claim()
    role.renew(kept)
    role.mark_started(kept)
    role.run(verbs.step(kept, "s", 1))
    role.run(verbs.recall(kept, "s"))
    role.run(verbs.progress(kept, 1))
    role.run(verbs.fence(kept))
    role.run(verbs.record_refusal(kept))
    role.complete(done)
    role.complete(done, failed)
    role.complete(failed)
    role.release(released)
    role.run(verbs.beat("w", host="h", pid=1, version="0", queues=["default"], sleeping=["default"], watched=True))
    role.reap()
    role.run(verbs.prune("ledger", older_than_seconds=60))
    role.run(verbs.leave("w"))

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        role.run(verbs.retry(kept.job_id))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        role.run(verbs.recover())


@pytest.mark.parametrize("role", ["viewer"], indirect=True)
def test_a_viewer_sees_and_changes_nothing(role: Driver) -> None:
    for view in ("jobs", "journal", "steps", "workers", "keys"):
        role.connection.execute(f"select * from faultline.{view}".encode())

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        role.enqueue()


def test_a_role_that_may_only_reap_cannot_take_live_leases(queue: Driver, sessions: Sessions) -> None:
    """Not with settings of its own, and not with objects of its own in the way of the functions' names."""
    job_id = queue.enqueue()
    queue.claim_one()
    thief = sessions.open()
    thief.connection.execute("create schema thief")
    thief.connection.execute("grant all on schema thief to faultline_operator")
    thief.connection.execute("set role faultline_operator")
    thief.connection.execute(
        "create function thief.statement_timestamp() returns timestamptz language sql return '2100-01-01'::timestamptz"
    )
    thief.connection.execute("create function thief.now() returns timestamptz language sql return '2100-01-01'::timestamptz")
    thief.connection.execute("set search_path = thief, pg_catalog")

    assert thief.do(lambda q: q.reap()) == []

    assert queue.state(job_id) is JobState.RUNNING


def test_everyone_else_is_shut_out(queue: Driver) -> None:
    queue.connection.execute("create role stranger_of_the_test nologin")
    try:
        queue.connection.execute("set role stranger_of_the_test")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            queue.enqueue()
    finally:
        queue.connection.execute("reset role")
        queue.connection.execute("drop role stranger_of_the_test")


# The view


def test_one_look_sees_a_moving_job_exactly_once(queue: Driver, sessions: Sessions) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    worker = sessions.open()

    worker.begin()
    worker.do(lambda q: q.complete(lease))
    seen_before = queue.value("select array_agg(state) from faultline.jobs where id = %s", job_id)
    worker.commit()
    seen_after = queue.value("select array_agg(state) from faultline.jobs where id = %s", job_id)

    assert (seen_before, seen_after) == (["running"], ["succeeded"])


def test_a_job_that_simply_succeeds_writes_nothing_into_the_journal(queue: Driver) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 20))
    queue.complete(*queue.claim())

    assert queue.value("select count(*) from faultline.journal") == 0

"""The doctor, and `migrate` after it, where somebody has changed the schema by SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.store import verbs
from faultline.store.install import constraints, migrate, schema_diff
from tests.cli.commands import faultline
from tests.cli.test_doctor import of_level, visit

if TYPE_CHECKING:
    from tests.conftest import NewLogin
    from tests.driver import Clock, Driver

_WEAK = (
    "create or replace trigger token_grows before update of state, fencing_token on faultline.open_jobs"
    " for each row when (false) execute function faultline.refuse_change('a token only grows')"
)

_WEAK_VIEW = (
    "do $$ begin execute 'create or replace view faultline.jobs as select * from ('"
    " || rtrim(pg_get_viewdef('faultline.jobs'), ';') || ') all_jobs where false'; end $$"
)


@pytest.mark.parametrize(
    ("damage", "check", "told"),
    [
        pytest.param(_WEAK, "guards", "open_jobs.token_grows", id="when (false)"),
        pytest.param("alter table faultline.ledger disable trigger user", "guards", "ledger.never_emptied", id="disabled"),
        pytest.param("drop trigger never_emptied on faultline.keys", "guards", "keys.never_emptied", id="dropped"),
        pytest.param("drop function faultline.reap", "functions", "reap is missing", id="function dropped"),
        pytest.param(
            "alter function faultline.cancel reset search_path", "functions", "cancel has other settings", id="search_path"
        ),
        pytest.param(
            "alter function faultline.retry security invoker",
            "functions",
            "retry does not run with the rights of its owner",
            id="security invoker",
        ),
        pytest.param(
            "create or replace function faultline.worker_lock(worker_id text) returns bigint"
            " language sql immutable parallel safe return 7",
            "functions",
            "worker_lock is not as migrate made it",
            id="another return",
        ),
        pytest.param(
            "alter function faultline.complete strict", "functions", "complete is not as migrate made it", id="strict"
        ),
        pytest.param("alter function faultline.claim stable", "functions", "claim is not as migrate made it", id="stable"),
        pytest.param(_WEAK_VIEW, "views", "jobs", id="view"),
        pytest.param("drop view faultline.new_jobs", "views", "new_jobs", id="view of new jobs"),
        pytest.param("grant select on faultline.jobs to public", "public", "select on jobs", id="public table"),
        pytest.param("grant update (args) on faultline.open_jobs to public", "public", "open_jobs.args", id="public column"),
        pytest.param(
            "grant execute on function faultline.recover to public", "public", "execute on recover()", id="public function"
        ),
        pytest.param("grant usage on schema faultline to public", "public", "usage on schema", id="public schema"),
        pytest.param(
            "grant update on faultline.open_jobs to faultline_viewer",
            "excess",
            "faultline_viewer: update on open_jobs",
            id="excess table",
        ),
        pytest.param(
            "grant select on faultline.api_keys to faultline_viewer", "excess", "select on api_keys", id="excess digests"
        ),
        pytest.param(
            "grant select (digest) on faultline.api_keys to faultline_operator",
            "excess",
            "api_keys.digest",
            id="excess column",
        ),
        pytest.param(
            "grant execute on function faultline.recover to faultline_producer", "excess", "recover()", id="excess verb"
        ),
        pytest.param(
            "grant create on schema faultline to faultline_worker", "excess", "create on schema", id="excess schema"
        ),
        pytest.param(
            "set session_replication_role = replica; delete from faultline.settings; set session_replication_role = origin",
            "rows",
            "the only row of settings is missing",
            id="lost row",
        ),
    ],
)
def test_what_was_weakened_is_wrong_and_migrate_puts_it_back(
    queue: Driver, dsn: str, damage: str, check: str, told: str
) -> None:
    queue.connection.execute(damage.encode())

    found = of_level(visit(dsn), "wrong")
    migrated = faultline("migrate", "--dsn", dsn)

    assert told in found[check]
    assert "migrated to protocol" in migrated.stdout
    assert of_level(visit(dsn), "wrong") == {}


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("alter function faultline.reap owner to faultline_viewer", "owner faultline_viewer of function reap"),
        ("create rule r as on delete to faultline.open_jobs do instead nothing", "rule r on open_jobs"),
        ("alter table faultline.ledger enable row level security", "row level security on ledger"),
        (
            (
                "create trigger spy after insert on faultline.open_jobs for each row when (false)"
                " execute function faultline.refuse_change('')"
            ),
            "trigger spy on open_jobs",
        ),
        ("create function faultline.helper() returns int language sql return 1", "function helper"),
        ("create table public.shadow () inherits (faultline.open_jobs)", "shadow that inherits open_jobs"),
        ("alter table faultline.ledger set unlogged", "unlogged table ledger"),
        (
            (
                "do $$ begin execute format('alter database %I set session_replication_role = replica',"
                " current_database()); end $$"
            ),
            "session_replication_role=replica",
        ),
        ("alter table faultline.steps owner to faultline_viewer", "owner faultline_viewer of steps"),
        ("grant insert on faultline.ledger to pg_monitor", "grant of insert on ledger to pg_monitor"),
        ("grant update (args) on faultline.open_jobs to pg_monitor", "grant of update on open_jobs.args to pg_monitor"),
        (
            "grant execute on function faultline.set_current_verb to pg_monitor",
            "grant of execute on set_current_verb() to pg_monitor",
        ),
        ("grant execute on function faultline.recover to pg_monitor", "grant of execute on recover() to pg_monitor"),
        ("create unique index oops on faultline.open_jobs (task)", "unique index oops on open_jobs"),
        ("alter table faultline.open_jobs add constraint oops check (priority < 5)", "constraint oops on open_jobs"),
        ("alter table faultline.keys add constraint oops unique (job_id)", "constraint oops on keys"),
        ("alter table faultline.ledger add constraint oops exclude (task with =)", "constraint oops on ledger"),
        ("alter domain faultline.priority add constraint oops check (value < 5)", "constraint oops on priority"),
        (
            "create table public.shop (job_id uuid constraint oops references faultline.open_jobs)",
            "constraint oops of shop on open_jobs",
        ),
        ("grant create on schema faultline to pg_monitor", "grant of create on schema faultline to pg_monitor"),
    ],
)
def test_what_somebody_put_beside_the_tables_is_wrong_and_named(queue: Driver, dsn: str, damage: str, told: str) -> None:
    queue.connection.execute(damage.encode())

    (found,) = (finding for finding in visit(dsn)["findings"] if finding["check"] == "foreign")
    assert (found["level"], told in found["found"]) == ("wrong", True)
    queue.connection.execute(found["todo"].partition(": ")[2].encode())
    assert queue.run(schema_diff.foreign()) == []


def test_a_table_of_ours_is_never_to_be_dropped(queue: Driver, dsn: str) -> None:
    queue.connection.execute("alter table faultline.open_jobs set unlogged")

    (todo,) = (finding["todo"] for finding in visit(dsn)["findings"] if finding["check"] == "foreign")

    assert todo.endswith("then: alter table faultline.open_jobs set logged")
    assert "drop" not in todo


_WEAK_CHECK = (
    "alter table faultline.open_jobs drop constraint running_means_leased, add constraint running_means_leased check (true)"
)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("alter table faultline.ledger drop constraint ledger_pkey", "ledger.ledger_pkey"),
        ("alter table faultline.steps drop constraint steps_pkey", "steps.steps_pkey"),
        ("alter table faultline.api_keys drop constraint api_keys_digest_key", "api_keys.api_keys_digest_key"),
        ("alter table faultline.settings drop constraint settings_only_row_check", "settings.settings_only_row_check"),
        ("alter table faultline.open_jobs drop constraint finished_means_ended", "open_jobs.finished_means_ended"),
        (_WEAK_CHECK, "open_jobs.running_means_leased"),
        ("alter domain faultline.state drop constraint known_state", "state.known_state"),
        ("alter table faultline.open_jobs alter fencing_token drop not null", "open_jobs.fencing_token may be null"),
        ("alter table faultline.open_jobs alter trace set not null", "open_jobs.trace must not be null"),
        ("alter table faultline.open_jobs alter state drop default", "open_jobs.state has another default"),
        ("alter table faultline.open_jobs alter attempt set default 7", "open_jobs.attempt has another default"),
        ("alter table faultline.ledger alter result set default '1'", "ledger.result has another default"),
        ("alter table faultline.journal alter id drop identity", "journal.id is not an identity column"),
        ("alter table faultline.samples drop column oldest_due_at", "samples.oldest_due_at is missing"),
    ],
)
def test_what_a_table_lacks_is_found_with_the_statement_that_brings_it_back(queue: Driver, damage: str, told: str) -> None:
    assert queue.run(constraints.lacks()) == []
    queue.connection.execute(damage.encode())

    (lack,) = queue.run(constraints.lacks())

    assert told in lack.what
    if "column" in damage:
        assert lack.cure == "restore the table from a copy of the database"
    else:
        queue.connection.execute(lack.cure.encode())
        assert queue.run(constraints.lacks()) == []


def test_the_journal_counts_on_from_where_it_was_when_its_count_is_brought_back(queue: Driver, clock: Clock) -> None:
    def journalled() -> int:
        queue.claim_one()
        clock.advance(31)
        queue.reap()
        return int(queue.value("select count(*) from faultline.journal"))

    queue.enqueue()
    before = journalled()
    queue.connection.execute("alter table faultline.journal alter id drop identity")
    (lack,) = queue.run(constraints.lacks())
    queue.connection.execute(lack.cure.encode())

    assert journalled() > before


@pytest.mark.parametrize(
    "damage",
    [
        "alter sequence faultline.journal_id_seq restart with 1",
        "select setval('faultline.journal_id_seq', 1)",
        "alter sequence faultline.journal_id_seq increment by -1 minvalue -9",
        "alter sequence faultline.journal_id_seq maxvalue 100",
        "alter sequence faultline.journal_id_seq cycle",
        "alter sequence faultline.journal_id_seq cache 20",
    ],
)
def test_a_journal_that_does_not_count_on_is_wrong_and_migrate_sets_it_right(queue: Driver, dsn: str, damage: str) -> None:
    for _ in range(3):
        queue.run(verbs.cancel(queue.enqueue()))
    queue.connection.execute(damage.encode())

    found = of_level(visit(dsn), "wrong")
    migrated = faultline("migrate", "--dsn", dsn)

    assert "the journal" in found["numbering"]
    assert "migrated to protocol" in migrated.stdout
    assert of_level(visit(dsn), "wrong") == {}
    assert "up to date" in faultline("migrate", "--dsn", dsn).stdout
    queue.run(verbs.cancel(queue.enqueue()))
    assert queue.value("select max(id) - count(*) from faultline.journal") == 0


def test_a_lost_record_of_what_was_applied_is_wrong_and_migrate_writes_it_again(queue: Driver, dsn: str) -> None:
    queue.connection.execute("delete from faultline.schema_files")

    assert of_level(visit(dsn), "wrong")["files"] == "not recorded in schema_files: 0001_initial"
    asked = faultline("migrate", "--dsn", dsn)
    assert "migrated to protocol" in asked.stdout, asked.stderr
    assert of_level(visit(dsn), "wrong") == {}


def test_the_table_that_keeps_the_record_has_its_key(queue: Driver, dsn: str) -> None:
    queue.connection.execute("alter table faultline.schema_files drop constraint schema_files_pkey")

    assert "schema_files.schema_files_pkey" in of_level(visit(dsn), "wrong")["tables"]


def test_a_lost_constraint_is_one_truth_in_every_report(queue: Driver, dsn: str) -> None:
    queue.connection.execute("alter table faultline.ledger drop constraint ledger_pkey")

    told, migrated = visit(dsn), faultline("migrate", "--dsn", dsn)

    wrong = {finding["check"]: finding for finding in told["findings"] if finding["level"] == "wrong"}
    assert {"tables", "the guards are in place"} <= wrong.keys()
    assert "ledger.ledger_pkey" in wrong["tables"]["found"]
    assert "see the findings" in wrong["the guards are in place"]["todo"]
    assert of_level(told, "ok")["guards"] == "the triggers are the same as in this build"
    assert "not repaired: constraint ledger.ledger_pkey" in migrated.stderr
    queue.connection.execute(wrong["tables"]["todo"].partition(": ")[2].encode())
    assert of_level(visit(dsn), "wrong") == {}


def test_an_index_that_is_gone_is_told_with_the_statement_that_makes_it(queue: Driver, dsn: str) -> None:
    queue.connection.execute("drop index faultline.open_jobs_leases")

    told = visit(dsn)

    assert "open_jobs_leases" in of_level(told, "warning")["indexes"]
    (todo,) = (finding["todo"] for finding in told["findings"] if finding["check"] == "indexes")
    queue.connection.execute(todo.partition(": ")[2].encode())
    assert "indexes" not in of_level(visit(dsn), "warning")


_SAME_COLUMNS = "(queue, priority, next_run_at, id)"


@pytest.mark.parametrize(
    "another",
    [
        f"index open_jobs_ready on faultline.open_jobs {_SAME_COLUMNS}",
        f"index open_jobs_ready on faultline.open_jobs {_SAME_COLUMNS} where state = 'running'",
        f"index open_jobs_ready on faultline.open_jobs {_SAME_COLUMNS} where state <> 'queued'",
        "index open_jobs_ready on faultline.open_jobs (queue, next_run_at, priority, id) where state = 'queued'",
        "index open_jobs_ready on faultline.ledger (queue)",
        f"unique index open_jobs_ready on faultline.open_jobs {_SAME_COLUMNS} where state = 'queued'",
        f"index open_jobs_ready on faultline.open_jobs using brin {_SAME_COLUMNS} where state = 'queued'",
    ],
)
def test_an_index_that_is_another_one_is_told(queue: Driver, another: str) -> None:
    assert queue.run(schema_diff.missing_indexes()) == []
    queue.connection.execute("drop index faultline.open_jobs_ready")

    queue.connection.execute(f"create {another}".encode())

    assert [name for name, _ in queue.run(schema_diff.missing_indexes())] == ["open_jobs_ready"]


def test_what_people_may_grant_is_not_told(queue: Driver) -> None:
    queue.connection.execute("grant usage on schema faultline to pg_monitor")
    queue.connection.execute("grant select on faultline.jobs to pg_monitor")
    queue.connection.execute("grant execute on function faultline.enqueue_many(text, boolean, boolean) to pg_monitor")

    assert queue.run(schema_diff.foreign()) == []
    assert queue.run(schema_diff.excess_grants()) == queue.run(schema_diff.public_grants()) == []


def test_a_login_that_got_more_than_its_role_has_is_told(queue: Driver, new_login: NewLogin) -> None:
    """Roles belong to the whole cluster: what is granted here is taken back before another test can see it."""
    login, owner = new_login("in role faultline_worker"), new_login("")
    execute = queue.connection.execute
    with queue.connection.transaction(force_rollback=True):
        execute(f"grant execute on function faultline.claim to {login}".encode())
        assert queue.run(schema_diff.foreign()) == []
        execute(f"grant execute on function faultline.recover to {login}".encode())
        assert [thing.what for thing in queue.run(schema_diff.foreign())] == [f"grant of execute on recover() to {login}"]
    with queue.connection.transaction(force_rollback=True):
        execute("grant faultline_operator to faultline_producer")
        (found,) = queue.run(schema_diff.foreign())
        assert found.what == "membership of faultline_producer in faultline_operator"
        assert found.cure == "revoke faultline_operator from faultline_producer"
    with queue.connection.transaction(force_rollback=True):
        execute(f"alter schema faultline owner to {owner}; grant {owner} to {login}".encode())
        of_members = [thing for thing in queue.run(schema_diff.foreign()) if thing.kind == "membership"]
        assert of_members == [
            ("membership", f"membership of {login} in {owner}, who owns the tables", f"revoke {owner} from {login}")
        ]


def test_a_lost_floor_comes_back_above_every_token(queue: Driver) -> None:
    queue.enqueue()
    before = queue.claim_one()
    queue.release(before)
    queue.connection.execute("set session_replication_role = replica")
    queue.connection.execute("delete from faultline.settings")
    queue.connection.execute("set session_replication_role = origin")

    migrate.migrate(queue.connection)

    assert queue.claim_one().fencing_token > before.fencing_token + 10**15


def test_grants_that_are_gone_come_back_by_migrate(queue: Driver, dsn: str) -> None:
    queue.connection.execute("revoke all on all functions in schema faultline from faultline_worker")

    assert "faultline_worker: claim" in of_level(visit(dsn), "warning")["grants"]
    assert migrate.migrate(queue.connection) == ["definitions"]
    assert "grants" not in of_level(visit(dsn), "warning")

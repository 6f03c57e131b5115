from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from faultline.core import errors
from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.async_database import AsyncDatabase
from faultline.store.connection.connecting import InvalidDsn, NoConnection
from faultline.store.connection.deadline import Deadline
from faultline.store.database import Database, run_on
from faultline.store.reads import views
from faultline.store.statement import Rows, Statement
from faultline.store.translation import translated

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    with contextlib.closing(Database(dsn)) as opened:
        yield opened


@pytest.fixture
def killer(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def kill_others(killer: psycopg.Connection) -> None:
    killer.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )


# Errors are sentences


def test_a_server_that_is_down_is_named_without_the_password() -> None:
    with pytest.raises(errors.DatabaseUnavailable, match=r"cannot use postgresql://ada:\*\*\*@127\.0\.0\.1:1/db"):
        Database("postgresql://ada:secret@127.0.0.1:1/db").facts()


def test_nonsense_is_said_to_be_no_dsn() -> None:
    with pytest.raises(errors.ConfigError, match="invalid DSN: it does not begin with postgresql://"):
        Database("nonsense").facts()


@pytest.mark.parametrize(
    "message",
    [
        'missing "=" after "shop:SECRET" in connection info string',
        "fehlendes »=« nach »shop:SECRET« in der Zeichenkette der Verbindungsdaten",
        "« = » manquant après « shop:SECRET » dans la chaîne des paramètres de connexion",
        '接続情報文字列において"shop:SECRET"の後に"="がありませんでした',
    ],
    ids=["en", "de", "fr", "ja"],
)
def test_libpq_may_say_in_any_language_what_is_no_dsn(message: str) -> None:
    with pytest.raises(errors.ConfigError) as refused, translated("shop:SECRET"):
        raise InvalidDsn(message)

    assert str(refused.value).startswith("invalid DSN: it does not begin with postgresql://, and a part of it is not NAME=")
    assert "SECRET" not in str(refused.value)


def test_what_libpq_quotes_of_a_dsn_is_shown_in_no_language() -> None:
    with pytest.raises(errors.ConfigError) as refused, translated("postgresql://h/d?SECRET=1"):
        raise InvalidDsn("ungültiger URI-Query-Parameter: »SECRET«")

    assert str(refused.value).startswith("invalid DSN: ungültiger URI-Query-Parameter; the text is not shown")


def test_only_what_connecting_raises_is_about_the_dsn(dsn: str) -> None:
    with pytest.raises(errors.ConfigError, match=r"invalid DSN: .*connect_timeout"):
        Database(make_conninfo(dsn, connect_timeout="soon")).facts()

    unknown = Statement("ask", "select %s", (object(),), lambda rows: rows)
    with (
        contextlib.closing(Database(dsn)) as database,
        pytest.raises(psycopg.ProgrammingError, match="cannot adapt type 'object'"),
    ):
        database.run(unknown)


def test_an_unknown_database_is_named(dsn: str) -> None:
    with pytest.raises(errors.DatabaseUnavailable, match='"no_such_database" does not exist'):
        Database(make_conninfo(dsn, dbname="no_such_database")).facts()


def test_an_unknown_user_is_named(dsn: str) -> None:
    with pytest.raises(errors.DatabaseUnavailable, match="no_such_user"):
        Database(make_conninfo(dsn, user="no_such_user")).facts()


def test_async_errors_are_the_same() -> None:
    async def ask() -> None:
        await AsyncDatabase("postgresql://ada:secret@127.0.0.1:1/db").facts()

    with pytest.raises(errors.DatabaseUnavailable, match=r"ada:\*\*\*@"):
        asyncio.run(ask())


# Lost answers


class Cut:
    """A statement whose connection is cut at a chosen moment: before it is sent, or after the server has committed it."""

    def __init__(self, statement: Statement[Any], killer: psycopg.Connection, moment: str, times: int = 1) -> None:
        self._statement = statement
        self._killer = killer
        self._moment = moment
        self.times_left = times

    def build(self) -> Statement[Any]:
        original = self._statement

        def read(rows: Rows) -> Any:
            if self._moment == "after" and self.times_left:
                self.times_left -= 1
                kill_others(self._killer)
                raise psycopg.OperationalError("the answer was lost")
            return original.read(rows)

        return replace(original, read=read)


def test_an_enqueue_whose_answer_is_lost_is_sent_again_and_makes_one_job(
    database: Database, killer: psycopg.Connection
) -> None:
    job_id = Ids().new()
    statement = verbs.enqueue_many([Submission("t", id=job_id)])

    (placed,) = database.run(Cut(statement, killer, "after").build())

    assert (placed.job_id, placed.created) == (job_id, False)
    assert killer.execute("select count(*) from faultline.jobs").fetchone() == (1,)


def test_an_enqueue_on_connections_that_died_in_the_pool_is_sent_again(
    database: Database, killer: psycopg.Connection
) -> None:
    database.run(views.job(uuid4()))
    kill_others(killer)

    (placed,) = database.run(verbs.enqueue_many([Submission("t", id=Ids().new())]))

    assert placed.created


def test_a_write_that_must_not_be_sent_twice_has_an_unknown_outcome(database: Database, killer: psycopg.Connection) -> None:
    (placed,) = database.run(verbs.enqueue_many([Submission("t", id=Ids().new())]))
    database.run(verbs.cancel(placed.job_id))

    with pytest.raises(errors.OutcomeUnknown, match="may or may not have been committed"):
        database.run(Cut(verbs.retry(placed.job_id), killer, "after").build())

    assert killer.execute("select state from faultline.jobs").fetchone() == ("queued",)


def test_an_answer_that_is_lost_again_and_again_is_given_up_after_three_sends(
    database: Database, killer: psycopg.Connection
) -> None:
    cut = Cut(verbs.enqueue_many([Submission("t", id=Ids().new())]), killer, "after", times=99)

    with pytest.raises(errors.OutcomeUnknown, match="enqueue"):
        database.run(cut.build())

    assert cut.times_left == 96
    assert killer.execute("select count(*) from faultline.jobs").fetchone() == (1,)


def test_a_fresh_submission_is_not_taken_for_fresh_when_it_is_sent_again(
    database: Database, killer: psycopg.Connection
) -> None:
    """Also when the first one's job has finished meanwhile: it must not run again."""
    statement = verbs.enqueue_many([Submission("t")], Ids())
    assert statement.params[-1] is True

    def finish(rows: Rows) -> Any:
        if not done:
            done.append(True)
            lease = run_on(killer, verbs.claim("default", owner="w/1", max_jobs=1))
            run_on(killer, verbs.complete(lease, ["1"]))
            kill_others(killer)
            raise psycopg.OperationalError("the answer was lost")
        return statement.read(rows)

    done: list[bool] = []
    (placed,) = database.run(replace(statement, read=finish))

    assert placed.created is False
    assert killer.execute("select array_agg(state) from faultline.jobs").fetchone() == (["succeeded"],)


def test_a_large_submission_whose_commit_got_no_answer_is_sent_again_as_a_whole(
    database: Database, killer: psycopg.Connection
) -> None:
    parts = [verbs.enqueue_many([Submission("t", id=Ids().new()) for _ in range(50)]) for _ in range(3)]

    answers = database.run_all([*parts[:2], Cut(parts[2], killer, "after").build()])

    assert [len(answer) for answer in answers] == [50, 50, 50]
    assert killer.execute("select count(*) from faultline.jobs").fetchone() == (150,)


def test_failing_to_connect_again_after_a_lost_answer_is_an_unknown_outcome(
    database: Database, killer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the second send says that it could not connect. The first may have happened."""
    database.run(views.job(uuid4()))
    cut = Cut(verbs.enqueue_many([Submission("t", id=Ids().new())]), killer, "after")
    pool = database._open_pool()  # noqa: SLF001
    connections = iter([pool.connection(Deadline())])

    def connection(_: Deadline) -> Any:
        try:
            return next(connections)
        except StopIteration:
            raise NoConnection from None

    monkeypatch.setattr(pool, "connection", connection)

    with pytest.raises(errors.OutcomeUnknown):
        database.run(cut.build())


def test_a_pool_that_gives_no_connection_wrote_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.run(views.job(uuid4()))

    def connection(_: Deadline) -> Any:
        raise NoConnection

    monkeypatch.setattr(database._open_pool(), "connection", connection)  # noqa: SLF001

    with pytest.raises(errors.DatabaseUnavailable, match="nothing was sent"):
        database.run(verbs.enqueue_many([Submission("t", id=Ids().new())]))


@pytest.mark.parametrize(("autocommit", "error"), [(True, errors.OutcomeUnknown), (False, errors.DatabaseUnavailable)])
def test_a_callers_connection_that_is_lost(dsn: str, killer: psycopg.Connection, autocommit: bool, error: Any) -> None:  # noqa: FBT001
    with contextlib.closing(psycopg.connect(dsn, autocommit=autocommit)) as connection:
        connection.execute("select 1")
        statement = Cut(verbs.enqueue_many([Submission("t")]), killer, "after").build()

        with pytest.raises(error):
            run_on(connection, statement)


def test_a_servers_default_isolation_does_not_change_what_the_client_does(dsn: str, killer: psycopg.Connection) -> None:
    killer.execute(f"alter database \"{killer.info.dbname}\" set default_transaction_isolation = 'serializable'".encode())

    with contextlib.closing(Database(dsn)) as database:
        database.run(verbs.enqueue_many([Submission("t", id=Ids().new())]))
        with database.connection() as connection:
            assert connection.execute("show transaction_isolation").fetchone() == ("read committed",)


def test_many_event_loops_do_not_leave_their_connections_behind(dsn: str, killer: psycopg.Connection) -> None:
    database = AsyncDatabase(dsn)
    for _ in range(12):
        asyncio.run(database.run(views.job(uuid4())))

    count = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    give_up = time.monotonic() + 20
    while (row := killer.execute(count).fetchone()) and row[0] > 3:
        assert time.monotonic() < give_up  # a closed connection's backend goes a moment later
    asyncio.run(database.close())


def test_async_lost_answers_are_asked_for_too(dsn: str, killer: psycopg.Connection) -> None:
    job_id = Ids().new()

    async def enqueue() -> Any:
        database = AsyncDatabase(dsn)
        statement = verbs.enqueue_many([Submission("t", id=job_id)])
        placed = await database.run(Cut(statement, killer, "after").build())
        await database.close()
        return placed

    (placed,) = asyncio.run(enqueue())

    assert (placed.job_id, placed.created) == (job_id, False)
    assert killer.execute("select count(*) from faultline.jobs").fetchone() == (1,)


def test_statements_of_one_submission_take_effect_together_or_not_at_all(database: Database) -> None:
    good, bad = verbs.enqueue_many([Submission("t")]), verbs.enqueue_many([Submission("")])

    with pytest.raises(errors.JobRejected):
        database.run_all([good, bad])

    with database.connect() as connection:
        assert connection.execute("select count(*) from faultline.jobs").fetchone() == (0,)


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(dsn: str) -> None:
    slow: Statement[None] = Statement("slow", "select pg_sleep(60)", (), lambda _: None)

    async def ask() -> None:
        database = AsyncDatabase(dsn, answer_seconds=0.2)
        try:
            await database.run(slow)
        finally:
            await database.close()

    with pytest.raises(errors.OutcomeUnknown, match="may or may not have been committed"):
        asyncio.run(asyncio.wait_for(ask(), 20))

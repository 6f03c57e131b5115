"""The wire fails where it is told to, and only there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline_proof.proxy import Moment, Proxy, noticing_silence_after

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def proxy(dsn: str, told: list[str]) -> Iterator[Proxy]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table notes (n integer)")
    with Proxy(dsn, tell=lambda event, **_: told.append(event)) as opened:
        yield opened


def notes(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select count(*) from notes").fetchone()
    return row[0] if row else 0


def connect(proxy: Proxy) -> psycopg.Connection[Any]:
    settings: dict[str, Any] = noticing_silence_after(1)
    return psycopg.connect(proxy.dsn, autocommit=True, **settings)


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize(("moment", "written"), [(Moment.BEFORE_SENT, 0), (Moment.AFTER_COMMITTED, 1)])
def test_a_cut_takes_the_answer_away_and_the_moment_decides_what_was_written(
    dsn: str, proxy: Proxy, told: list[str], moment: Moment, written: int, *, silently: bool
) -> None:
    cut = proxy.cut("insert into notes", moment, silently=silently)

    with connect(proxy) as connection:
        connection.execute("select 1")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("insert into notes values (%s)", (1,))

    assert cut.happened.is_set()
    assert told == ["wire_cut"]
    assert notes(dsn) == written


def test_a_cut_happens_once(dsn: str, proxy: Proxy) -> None:
    proxy.cut("insert into notes", Moment.BEFORE_SENT)
    with connect(proxy) as connection, pytest.raises(psycopg.OperationalError):
        connection.execute("insert into notes values (1)")

    with connect(proxy) as connection:
        connection.execute("insert into notes values (1)")

    assert notes(dsn) == 1
    assert proxy.passed("insert into notes") == 1


def test_inside_a_transaction_only_the_commit_is_cut(dsn: str, proxy: Proxy) -> None:
    inserting = proxy.cut("insert into notes", Moment.BEFORE_SENT)
    committing = proxy.cut("^commit$", Moment.AFTER_COMMITTED)

    with connect(proxy) as connection:
        connection.execute("begin")
        connection.execute("insert into notes values (1)")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("commit")

    assert (inserting.happened.is_set(), committing.happened.is_set()) == (False, True)
    assert notes(dsn) == 1

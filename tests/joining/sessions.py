"""Sessions of every library that a program may have, each with how it commits and rolls back."""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from faultline import Faultline


@dataclass(frozen=True)
class Blocking:
    session: Any
    commit: Callable[[], None]
    rollback: Callable[[], None]
    #: Its statements, as the library takes them.
    execute: Callable[[str], Any]


@dataclass(frozen=True)
class Async:
    session: Any
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]
    execute: Callable[[str], Awaitable[Any]]


def url(app: Faultline, driver: str) -> Any:
    return make_url(app.url).set(drivername=f"postgresql+{driver}")


@contextmanager
def disposed(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        engine.dispose()


@asynccontextmanager
async def adisposed(engine: AsyncEngine) -> AsyncIterator[AsyncEngine]:
    try:
        yield engine
    finally:
        await engine.dispose()


@contextmanager
def of_psycopg(app: Faultline) -> Iterator[Blocking]:
    with psycopg.connect(app.dsn) as session:
        yield Blocking(session, session.commit, session.rollback, session.execute)


@contextmanager
def of_psycopg2(app: Faultline) -> Iterator[Blocking]:
    with contextlib.closing(psycopg2.connect(app.dsn, cursor_factory=psycopg2.extras.RealDictCursor)) as session:
        yield Blocking(session, session.commit, session.rollback, session.cursor().execute)


def of_session(driver: str) -> Callable[[Faultline], Any]:
    @contextmanager
    def opened(app: Faultline) -> Iterator[Blocking]:
        with disposed(create_engine(url(app, driver))) as engine, Session(engine) as session:
            run = lambda sql: session.connection().exec_driver_sql(sql)  # noqa: E731
            yield Blocking(session, session.commit, session.rollback, run)

    return opened


@contextmanager
def of_scoped(app: Faultline) -> Iterator[Blocking]:
    with disposed(create_engine(app.url)) as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            yield Blocking(session, session.commit, session.rollback, lambda sql: session.connection().exec_driver_sql(sql))
        finally:
            session.remove()


def of_connection(driver: str) -> Callable[[Faultline], Any]:
    @contextmanager
    def opened(app: Faultline) -> Iterator[Blocking]:
        with disposed(create_engine(url(app, driver))) as engine, engine.connect() as session:
            yield Blocking(session, session.commit, session.rollback, session.exec_driver_sql)

    return opened


BLOCKING = {
    "psycopg": of_psycopg,
    "psycopg2": of_psycopg2,
    "session on psycopg": of_session("psycopg"),
    "session on psycopg2": of_session("psycopg2"),
    "scoped session": of_scoped,
    "connection on psycopg": of_connection("psycopg"),
    "connection on psycopg2": of_connection("psycopg2"),
}


@asynccontextmanager
async def of_async_psycopg(app: Faultline) -> AsyncIterator[Async]:
    async with await psycopg.AsyncConnection.connect(app.dsn) as session:
        yield Async(session, session.commit, session.rollback, session.execute)


def asyncpg_words(app: Faultline) -> dict[str, Any]:
    named = conninfo_to_dict(app.dsn)
    words = {"host": named["host"], "port": named["port"], "user": named.get("user"), "database": named["dbname"]}
    return {name: value for name, value in words.items() if value is not None}


@asynccontextmanager
async def of_asyncpg(app: Faultline) -> AsyncIterator[Async]:
    """From a pool, with codecs of the program's own, and without prepared statements, as behind a pooler."""

    async def set_up(connection: Any) -> None:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, encoder=repr, decoder=repr, schema="pg_catalog")
        await connection.set_type_codec("uuid", encoder=str, decoder=lambda text: f"<{text}>", schema="pg_catalog")

    async with (
        asyncpg.create_pool(**asyncpg_words(app), statement_cache_size=0, min_size=1, init=set_up) as pool,
        pool.acquire() as session,
    ):
        current = session.transaction()
        await current.start()

        async def commit() -> None:
            nonlocal current
            await current.commit()
            current = session.transaction()
            await current.start()

        async def rollback() -> None:
            nonlocal current
            await current.rollback()
            current = session.transaction()
            await current.start()

        yield Async(session, commit, rollback, session.execute)
        await current.rollback()


def of_async_session(driver: str) -> Callable[[Faultline], Any]:
    @asynccontextmanager
    async def opened(app: Faultline) -> AsyncIterator[Async]:
        async with adisposed(create_async_engine(url(app, driver))) as engine, AsyncSession(engine) as session:

            async def execute(sql: str) -> None:
                await (await session.connection()).exec_driver_sql(sql)

            yield Async(session, session.commit, session.rollback, execute)

    return opened


def of_async_connection(driver: str) -> Callable[[Faultline], Any]:
    @asynccontextmanager
    async def opened(app: Faultline) -> AsyncIterator[Async]:
        async with adisposed(create_async_engine(url(app, driver))) as engine, engine.connect() as session:
            yield Async(session, session.commit, session.rollback, session.exec_driver_sql)

    return opened


ASYNC = {
    "psycopg": of_async_psycopg,
    "asyncpg": of_asyncpg,
    "session on psycopg": of_async_session("psycopg"),
    "session on asyncpg": of_async_session("asyncpg"),
    "connection on psycopg": of_async_connection("psycopg"),
    "connection on asyncpg": of_async_connection("asyncpg"),
}

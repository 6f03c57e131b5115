"""Open a connection within a deadline. The DSN and libpq's environment win over our defaults."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from faultline.core.dsn import LiveDsn, current, latest
from faultline.core.forks import keep_from_forks
from faultline.store.connection.deadline import BoundedConnection, Deadline
from faultline.store.connection.servers import servers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faultline.core.host import Host

#: The application name of a session, unless its owner sets another.
NAME = "faultline"
#: How long one host is tried, unless the DSN says otherwise.
CONNECT_SECONDS = 10.0
#: psycopg and libpq accept no less.
_CONNECT_SECONDS_MIN = 2
#: How long to wait between two tries.
_PAUSE_MIN, _PAUSE_MAX = 0.05, 1.0
#: Messages of a server or pooler that is full. Before a session exists libpq passes on no error code.
_FULL = re.compile("too many (clients|connections)|connection slots are reserved|no more connections allowed")
#: Prepare nothing until we know that no pooler shares the session.
_SESSION: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
_DEFAULTS: dict[str, Any] = {
    # Notice a peer that vanished within seconds; the system's defaults take hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    # Whatever the database and the environment set.
    "client_encoding": "utf8",
}


class NoConnection(psycopg.OperationalError):
    """No connection could be had in time. Nothing was sent."""


class InvalidDsn(psycopg.ProgrammingError):
    """libpq or psycopg cannot read the DSN. The message may quote it, with its password."""


@contextlib.contextmanager
def reading_dsn() -> Iterator[None]:
    """What psycopg raises here about its use is about the DSN. Elsewhere the same class is about a statement."""
    try:
        yield
    except psycopg.ProgrammingError as error:
        if error.sqlstate is not None or isinstance(error, InvalidDsn):
            raise
        raise InvalidDsn(str(error)) from None


def is_full(message: str) -> bool:
    return _FULL.search(message) is not None


def options(dsn: str, deadline: Deadline, name: str = NAME, *, writes: bool = False) -> dict[str, Any]:
    """The options to add to the DSN. Each host gets its share of the time, so that the last one is tried as well.

    `writes`: take no server that only reads, unless the DSN or PGTARGETSESSIONATTRS says otherwise. Behind one address for
    several servers, a standby may answer. From PostgreSQL 14 on, the server says it unasked.
    """
    named = conninfo_to_dict(dsn)
    # libpq uses the name only where neither the DSN nor PGAPPNAME gives one.
    defaults = {**_DEFAULTS, "fallback_application_name": name}
    if writes and not os.environ.get("PGTARGETSESSIONATTRS"):
        defaults["target_session_attrs"] = "read-write"
    chosen = {option: value for option, value in defaults.items() if option not in named}
    given = named.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT")
    try:
        seconds = math.floor(float(given)) if given else CONNECT_SECONDS
    except ValueError:
        return chosen  # psycopg raises with the reason
    if deadline.left is not None:
        share = deadline.left / hosts(dsn)
        seconds = share if seconds <= 0 else min(seconds, share)  # 0 means no limit
    return {**chosen, "connect_timeout": max(_CONNECT_SECONDS_MIN, math.floor(seconds)) if seconds > 0 else 0}


def hosts(dsn: str) -> int:
    """How many hosts the DSN names. They are tried one after the other."""
    named = conninfo_to_dict(dsn)
    return len(str(named.get("host") or named.get("hostaddr") or os.environ.get("PGHOST") or "").split(","))


def url_of(dsn: str) -> str:
    """The DSN as SQLAlchemy takes it, for the driver psycopg. Whatever libpq knows stays as it is."""
    named = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    user, password, database = (quote(named.pop(name, ""), safe="") for name in ("user", "password", "dbname"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    query = urlencode(named, quote_via=quote, safe="/,")
    return f"postgresql+psycopg://{login}/{database}{'?' if query else ''}{query}"


def connect(dsn: str, host: Host, deadline: Deadline, name: str = NAME, *, writes: bool = False) -> BoundedConnection:
    with reading_dsn():
        words = {**_SESSION, **options(dsn, deadline, name, writes=writes)}
        if host.connect is not None:
            made: BoundedConnection = host.connect(_now(dsn), **words)
            return made
        if deadline.seconds is None:
            opened = BoundedConnection.connect(_now(dsn), **words)
        else:
            opened = _Opening(dsn, words).within(deadline)
    servers_of(dsn).answer(opened)
    return keep_from_forks(opened)


async def aconnect(
    dsn: str, host: Host, deadline: Deadline, name: str = NAME, *, writes: bool = False
) -> psycopg.AsyncConnection:
    with reading_dsn():
        words = {**_SESSION, **options(dsn, deadline, name, writes=writes)}
    scope = asyncio.timeout(deadline.left)
    try:
        async with scope:
            # In a thread: it may ask a vault over the network.
            now = await asyncio.to_thread(_now, dsn) if isinstance(dsn, LiveDsn) else _now(dsn)
            with reading_dsn():
                if host.aconnect is not None:
                    return keep_from_forks(await host.aconnect(now, **words))
                opened = await psycopg.AsyncConnection.connect(now, **words)
    except TimeoutError as error:
        if not scope.expired():
            raise
        servers_of(dsn).give_up(latest(dsn))
        raise too_late(deadline) from error
    servers_of(dsn).answer(opened)
    return keep_from_forks(opened)


class Patience:
    """Pauses between tries to connect, with a limit: a server that restarts comes back."""

    def __init__(self, monotonic: Callable[[], float], deadline: Deadline) -> None:
        self._monotonic = monotonic
        self._give_up_at = monotonic() + (deadline.left or 0.0)
        self._pause = _PAUSE_MIN

    async def apause(self, error: psycopg.OperationalError) -> None:
        """Wait before the next try. Raises when no time is left for one."""
        await asyncio.sleep(self._seconds(error))

    def pause(self, error: psycopg.OperationalError) -> None:
        time.sleep(self._seconds(error))

    def _seconds(self, error: psycopg.OperationalError) -> float:
        if self._monotonic() + self._pause > self._give_up_at:
            raise NoConnection(str(error)) from error
        self._pause = min(self._pause * 2, _PAUSE_MAX)
        return self._pause / 2


class _Opening(threading.Thread):
    """Connects in a thread, since a DNS lookup cannot be interrupted. The thread closes a connection that comes too late."""

    def __init__(self, dsn: str, words: dict[str, Any]) -> None:
        super().__init__(name="faultline-connect", daemon=True)
        self._dsn = dsn
        self._words = words
        self._opened: Future[BoundedConnection] = Future()
        self._decided = threading.Lock()
        self._given_up = False

    def run(self) -> None:
        try:
            connection = BoundedConnection.connect(_now(self._dsn), **self._words)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._opened.set_exception(error)
            return
        with self._decided:
            if not self._given_up:
                self._opened.set_result(connection)
                return
        connection.close()

    def within(self, deadline: Deadline) -> BoundedConnection:
        self.start()
        try:
            return self._opened.result(deadline.left)
        except TimeoutError as error:
            with self._decided:
                if self._opened.done():
                    return self._opened.result()
                self._given_up = True
            servers_of(self._dsn).give_up(latest(self._dsn))
            raise too_late(deadline) from error


def _now(dsn: str) -> str:
    """The DSN, with the host first that answered last.

    A function that cannot give the DSN is as a server that cannot be reached: it is asked again.
    """
    try:
        now = current(dsn)
    except Exception as error:
        raise NoConnection(f"the function that gives the DSN raised {type(error).__name__}: {error}") from error
    return servers_of(dsn).arranged(now)


def too_late(deadline: Deadline) -> NoConnection:
    return NoConnection(f"not connected within {deadline.seconds:g} s")

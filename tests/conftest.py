"""A real PostgreSQL for every test, and a database of its own for each.

The server is the embedded one, or FAULTLINE_TEST_DSN. All processes of a test run share it; each test's database is cloned
from a migrated template, so tests neither see nor wait for each other.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import io
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline import Faultline, embedded, log_events
from faultline.store.install import migrate
from tests import warden
from tests.driver import Clock, Driver, Sessions
from tests.servers import DEFAULT, programs

if TYPE_CHECKING:
    from collections.abc import Iterator

NewLogin = Callable[[str], str]

REPOSITORY = Path(__file__).parents[1]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script: every process that a test starts and interrupts would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - Linux's folder in memory
ROOM_BYTES = 2 * 1024**3
_ENDING_SECONDS = 5.0


def _folder() -> Path:
    """Cloning a database is a matter of copying files: in memory where there is room, which is much faster."""
    if os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free > ROOM_BYTES:
        return SHARED_MEMORY / f"faultline-test-{os.getuid()}-{hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:8]}"
    return REPOSITORY / ".faultline" / "test"


FOLDER = _folder()
#: Crashes of the machine are not what these tests are about, and waiting for the disk is most of their time.
#: To make and to drop a database looks through all of the shared buffers.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_prepared_transactions": "8", "shared_buffers": "32MB"}


#: A test that waits for its own lock must fail, not hang.
PATIENCE = "-c lock_timeout=10s -c statement_timeout=60s"


class Servers:
    """The PostgreSQL servers of this test process, started when first asked for."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._templates: dict[str, str] = {}

    def template(self, name: str) -> str:
        """The DSN of a migrated database that is only ever cloned."""
        if name not in self._templates:
            self._templates[name] = _template(self._dsn(name))
        return self._templates[name]

    def _dsn(self, name: str) -> str:
        if name == DEFAULT and os.environ.get("FAULTLINE_TEST_DSN"):
            return os.environ["FAULTLINE_TEST_DSN"]
        with pytest.MonkeyPatch.context() as patch:
            if name != DEFAULT:
                patch.setenv("FAULTLINE_PG_BIN", str(programs()[name]))
            return self._stack.enter_context(embedded.join(FOLDER / name, settings=SETTINGS)).dsn


def _template(dsn: str) -> str:
    """Make the template once per schema text, whoever comes first."""
    name = f"faultline_template_{migrate.definitions().checksum[:8]}_{migrate.numbered()[-1].checksum[:8]}"
    template_dsn = make_conninfo(dsn, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(4711)")
        if not connection.execute("select 1 from pg_database where datname = %s", (name,)).fetchone():
            for (old,) in connection.execute(
                "select datname from pg_database where datname like 'faultline\\_template%'"
            ).fetchall():
                connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(old)))
            connection.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
            with psycopg.connect(template_dsn, autocommit=True) as fresh:
                migrate.migrate(fresh)
    return template_dsn


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the processes of xdist belong to the one that has started them
        warden.watch_over_this_process(FOLDER)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest by itself comes first, or all would wait for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Stacks are dumped of a test that hangs. One that takes long by itself is merely slow, and has its own deadlines."""
    if item.get_closest_marker("long"):
        faulthandler.cancel_dump_traceback_later()


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: to look through it for garbage took two fifths of collecting."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave nothing behind, once all processes of the run have left."""
    if not hasattr(session.config, "workerinput") and FOLDER.exists():
        for place in FOLDER.iterdir():
            if not embedded.status(place).users:  # of another run, in the same checkout
                embedded.destroy(place)
        with contextlib.suppress(OSError):
            FOLDER.rmdir()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(stack)
        for connection in _administrators.values():
            connection.close()


@pytest.fixture
def server() -> str:
    """Which server a test runs on. The protocol's own tests override this to run on several."""
    return DEFAULT


@contextlib.contextmanager
def clone(template_dsn: str, *, empty: bool = False) -> Iterator[str]:
    name = f"faultline_test_{secrets.token_hex(6)}"
    source = "template0" if empty else str(conninfo_to_dict(template_dsn)["dbname"])
    create = sql.SQL("create database {} template {} strategy file_copy")  # ten times as fast here
    _administrator(template_dsn).execute(create.format(sql.Identifier(name), sql.Identifier(source)))
    try:
        yield make_conninfo(template_dsn, dbname=name)
    finally:
        connection = _administrator(template_dsn)
        _end_sessions(connection, name)
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


_administrators: dict[str, psycopg.Connection] = {}


def _administrator(template_dsn: str) -> psycopg.Connection:
    """The session of this process that makes and drops databases: to open one costs the server as much as to drop one."""
    dsn = make_conninfo(template_dsn, dbname="postgres")
    if dsn not in _administrators or _administrators[dsn].closed:
        _administrators[dsn] = psycopg.connect(dsn, autocommit=True)
    return _administrators[dsn]


def _end_sessions(connection: psycopg.Connection, database: str) -> None:
    """`drop database` looks for other sessions ten times a second: one that is just ending would cost every test as much."""
    give_up = time.monotonic() + _ENDING_SECONDS
    end = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
    while connection.execute(end, (database,)).fetchone() and time.monotonic() < give_up:
        time.sleep(0.002)


@pytest.fixture
def dsn(servers: Servers, server: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    with clone(servers.template(server)) as found:
        yield found


@pytest.fixture
def empty_dsn(servers: Servers, server: str) -> Iterator[str]:
    """A database without the schema."""
    with clone(servers.template(server), empty=True) as found:
        yield found


@pytest.fixture
def sessions(dsn: str) -> Iterator[Sessions]:
    """Opens further sessions, to be stepped one by one."""
    with Sessions(dsn, PATIENCE) as opened:
        yield opened


@pytest.fixture
def queue(sessions: Sessions) -> Driver:
    """One session and the verbs on it."""
    return sessions.open()


@pytest.fixture
def clock(sessions: Sessions) -> Clock:
    """Time that stands still until it is moved. Installed in the database, for every session of this test."""
    sessions.clock.take()
    return sessions.clock


@pytest.fixture
def new_login(dsn: str) -> Iterator[NewLogin]:
    """Makes a login with these words of `create role`. The server is shared: afterwards it is dropped, with its sessions."""
    made: list[str] = []
    with psycopg.connect(dsn, autocommit=True) as owner:

        def make(words: str) -> str:
            made.append(f"login_{secrets.token_hex(6)}")
            owner.execute(f"create role {made[-1]} login {words}".encode())
            return made[-1]

        yield make
        for name in made:
            owner.execute("select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = %s", (name,))
            owner.execute(f"drop owned by {name} cascade; drop role {name}".encode())


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What is logged meanwhile, as lines of JSON."""
    stream = io.StringIO()
    handler = log_events(stream)
    yield stream
    logging.getLogger("faultline").removeHandler(handler)
    logging.getLogger("faultline").setLevel(logging.NOTSET)


@pytest.fixture
def app(dsn: str) -> Iterator[Faultline]:
    with Faultline(dsn) as application:
        yield application


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures that tests have measured and do not judge are shown at the end."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "figure":
                terminalreporter.write_line(value)

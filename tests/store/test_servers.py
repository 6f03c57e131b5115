"""Several servers behind one DSN: the one that answers is remembered, and one with an older history is refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline import Faultline
from faultline.core.errors import DatabaseUnavailable
from faultline.core.host import Host
from faultline.store.async_database import AsyncDatabase
from faultline.store.connection.connecting import aconnect, connect, options
from faultline.store.connection.deadline import Deadline
from faultline.store.connection.heartbeat_session import WorkerSession
from faultline.store.connection.servers import HISTORY, Servers, servers_of
from faultline.store.database import Database
from faultline.store.database_facts import read_clock
from faultline_proof.drills.failover import either
from faultline_proof.postgres import Postgres
from faultline_proof.proxy import Proxy
from tests.worker.working import logged

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path


class Frozen:
    """A host that accepts connections and never answers. It counts them."""

    def __enter__(self) -> Self:
        self._entrance = socket.create_server(("127.0.0.1", 0))
        self.port = self._entrance.getsockname()[1]
        self.tried = 0
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._kept.append(self._entrance.accept()[0])
                self.tried += 1

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._entrance.shutdown(socket.SHUT_RDWR)
        for one in (self._entrance, *self._kept):
            one.close()


@pytest.fixture
def frozen() -> Iterator[Frozen]:
    with Frozen() as host:
        yield host


@pytest.fixture
def wire(dsn: str) -> Iterator[Proxy]:
    with Proxy(dsn, tell=lambda *_, **__: None) as proxy:
        yield proxy


def behind(frozen: Frozen, wire: Proxy) -> str:
    port = conninfo_to_dict(wire.dsn)["port"]
    return make_conninfo(wire.dsn, host="127.0.0.1,127.0.0.1", port=f"{frozen.port},{port}", connect_timeout="2")


def test_a_frozen_host_at_the_head_of_the_dsn_is_tried_once(frozen: Frozen, wire: Proxy) -> None:
    dsn = behind(frozen, wire)

    for _ in range(3):
        connect(dsn, Host(), Deadline()).close()
    connect(dsn, Host(), Deadline(20)).close()
    WorkerSession(dsn, lock="w").connect().close()

    assert frozen.tried == 1


def test_async_and_blocking_connections_of_a_process_know_the_same(frozen: Frozen, wire: Proxy) -> None:
    dsn = behind(frozen, wire)

    async def opened() -> None:
        for _ in range(2):
            await (await aconnect(dsn, Host(), Deadline())).close()

    asyncio.run(opened())
    connect(dsn, Host(), Deadline()).close()
    with contextlib.closing(Faultline(dsn)) as app:
        app.database.run(read_clock())

    assert frozen.tried == 1


def test_a_host_that_used_up_the_time_of_a_call_is_not_tried_first_again(frozen: Frozen, wire: Proxy) -> None:
    dsn = behind(frozen, wire)

    with pytest.raises(psycopg.OperationalError):
        connect(dsn, Host(), Deadline(0.5))
    connect(dsn, Host(), Deadline(20)).close()

    assert frozen.tried == 1


class _Connection:
    """As far as `Servers` looks at it."""

    def __init__(self, host: str, port: int) -> None:
        self.info = self
        self.host, self.hostaddr, self.port = host, "", port


def met(servers: Servers, host: str, port: int = 5432) -> None:
    connection: Any = _Connection(host, port)
    servers.answer(connection)


def test_the_order_changes_and_nothing_else() -> None:
    servers = Servers()
    dsn = "postgresql://me:secret@a:1,b:2,c:3/jobs?target_session_attrs=prefer-standby"
    assert servers.arranged(dsn) == dsn

    met(servers, "b", 2)

    before, after = conninfo_to_dict(dsn), conninfo_to_dict(servers.arranged(dsn))
    assert (after.pop("host"), after.pop("port")) == ("b,a,c", "2,1,3")
    assert after == {name: value for name, value in before.items() if name not in ("host", "port")}


def test_hosts_that_the_environment_names_are_remembered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    servers = Servers()

    met(servers, "b")

    assert conninfo_to_dict(servers.arranged("dbname=jobs"))["host"] == "b,a"


def test_a_dsn_that_spreads_its_connections_is_left_alone() -> None:
    servers = Servers()
    dsn = "host=a,b load_balance_hosts=random"

    met(servers, "b")

    assert servers.arranged(dsn) == dsn


@pytest.mark.parametrize("given", [{}, {"target_session_attrs": "any"}])
def test_who_writes_asks_for_a_server_that_can_unless_the_dsn_says_otherwise(given: dict[str, str]) -> None:
    chosen = options(make_conninfo("host=a", **given), Deadline(), writes=True)

    assert chosen.get("target_session_attrs") == (None if given else "read-write")
    assert "target_session_attrs" not in options(make_conninfo("host=a", **given), Deadline())


def test_the_environment_says_otherwise_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")

    assert "target_session_attrs" not in options("host=a", Deadline(), writes=True)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Postgres]:
    with Postgres(tmp_path / "primary", settings={"fsync": "off"}) as server:
        yield server


@pytest.fixture
def standby(tmp_path: Path, primary: Postgres) -> Iterator[Postgres]:
    with Postgres(tmp_path / "standby", copy_of=primary.dsn, settings={"fsync": "off"}) as server:
        yield server


def test_a_standby_behind_one_address_is_not_taken_by_who_writes(standby: Postgres) -> None:
    with contextlib.closing(Database(standby.dsn)) as reader:
        reader.run(read_clock())
    app = Faultline(standby.dsn, timeout=1)

    with pytest.raises(DatabaseUnavailable, match="read-only"):
        app.database.run(read_clock())

    app.close()


def test_an_old_primary_that_wakes_up_is_refused_until_it_is_recovered(
    primary: Postgres, standby: Postgres, log: io.StringIO
) -> None:
    dsn = either(primary, standby)
    worker = Database(dsn, for_worker=True, connect_seconds=1)
    heart = WorkerSession(dsn, lock="w")
    async_worker = AsyncDatabase(dsn, for_worker=True, connect_seconds=1)
    worker.run(read_clock())
    heart.run(read_clock())
    primary.kill()
    standby.promote()
    with contextlib.suppress(DatabaseUnavailable):
        heart.run(read_clock())
    worker.run(read_clock())
    standby.kill()
    heart.close()

    primary.start()

    with pytest.raises(DatabaseUnavailable, match="timeline 2"):
        worker.run(read_clock())
    with pytest.raises(DatabaseUnavailable, match="timeline 2"):
        heart.run(read_clock())

    async def runs() -> None:
        await async_worker.run(read_clock())
        await async_worker.close()

    with pytest.raises(DatabaseUnavailable, match="timeline 2"):
        asyncio.run(runs())
    assert [line["known"] for line in logged(log, "older_server_refused")] == [2]

    standby.start()
    worker.run(read_clock())
    heart.run(read_clock())
    standby.kill()
    heart.close()
    with psycopg.connect(primary.dsn) as operator:
        operator.execute("select faultline.recover()")

    worker.run(read_clock())
    heart.run(read_clock())
    worker.close()
    heart.close()


@pytest.mark.parametrize("addresses", [1, 2])
def test_connections_to_an_older_server_are_not_used(primary: Postgres, standby: Postgres, addresses: int) -> None:
    """Also behind one address for both, where the connections that are open stay with the old one."""
    with Proxy(primary.dsn, tell=lambda *_, **__: None) as proxy:
        dsn = either(primary, standby) if addresses == 2 else proxy.dsn
        worker, heart = Database(dsn, for_worker=True), WorkerSession(dsn, lock="w")
        with worker.connection() as connection:
            old = timeline_of(connection)
        assert timeline_of(heart.connect()) == old
        standby.promote()  # and the primary is not stopped: two of them
        proxy.lead_to(standby.dsn)
        # Another pool of the process meets the new one.
        hosts = str(conninfo_to_dict(dsn)["host"]).split(",")
        with contextlib.closing(connect(make_conninfo(dsn, host=",".join(reversed(hosts))), Host(), Deadline())) as new:
            servers_of(dsn).judge(new, new.execute(HISTORY).fetchone())

        with worker.connection() as connection:
            assert timeline_of(connection) == old + 1
        assert timeline_of(heart.connect()) == old + 1
        worker.close()
        heart.close()


def timeline_of(connection: psycopg.Connection) -> int:
    row = connection.execute("select substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)::int").fetchone()
    assert row is not None
    return int(row[0])

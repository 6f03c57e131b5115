"""A server that starts on a database that is not right: it comes up, says what is wrong, and gets well by itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline.core.errors import DatabaseUnavailable
from faultline.store.connection import roles
from faultline.store.statement import Statement
from faultline.web.server.service import Service
from tests.web.conftest import QUICK, Api, new_key, refused, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver

WHO = Statement("who", "select current_user::text", (), lambda rows: str(rows[0][0]))
PATIENCE = 60


def wait_until_ready(api: Api) -> None:
    deadline = time.monotonic() + PATIENCE
    while api.get("/ready").status_code != 200:
        assert time.monotonic() < deadline, api.get("/ready").text
        time.sleep(0.1)


@pytest.mark.parametrize("role", ["viewer", "producer", "operator"])
def test_a_server_whose_login_lacks_a_grant_comes_up_says_so_and_gets_well(
    dsn: str, db: Driver, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    _, key = new_key(db, "admin")
    db.connection.execute(f"revoke execute on function faultline.protocol from faultline_{role}".encode())

    with running(dsn) as address, Api(address, key) as api:
        assert api.get("/health").status_code == 200
        ready = api.get("/ready")
        assert (ready.status_code, ready.json()["reasons"][0].partition(":")[0]) == (503, "PermissionDenied")
        if role == "viewer":
            refused(api.get("/jobs"), 503, "PermissionDenied")
        told = [vars(r)["faultline_fields"] for r in caplog.records if r.getMessage() == "database_unavailable"]
        assert any("permission denied for function protocol" in fields["error"] for fields in told)

        db.connection.execute(f"grant execute on function faultline.protocol to faultline_{role}".encode())
        wait_until_ready(api)
        api.submit()


@pytest.mark.parametrize("table", ["settings", "api_keys"])
def test_a_server_comes_up_beside_a_locked_table(dsn: str, db: Driver, table: str) -> None:
    _, key = new_key(db, "admin")
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(psycopg.connect(dsn))
        lock.execute(f"lock table faultline.{table} in access exclusive mode".encode())
        # Its own patience is what is tested: it waits for nobody without an end.
        api = stack.enter_context(Api(stack.enter_context(running(dsn)), key))

        assert api.get("/health").status_code == 200
        assert "StatementTimeout" in api.get("/ready").json()["reasons"][0]

        lock.rollback()
        wait_until_ready(api)
        api.submit()


def test_a_server_comes_up_on_a_database_without_a_schema(dsn: str, db: Driver) -> None:
    db.connection.execute("alter schema faultline rename to elsewhere")

    with running(dsn) as address, Api(address) as api:
        assert api.get("/health").status_code == 200
        assert "SchemaMissing" in api.get("/ready").json()["reasons"][0]

        db.connection.execute("alter schema elsewhere rename to faultline")
        wait_until_ready(api)


@contextlib.contextmanager
def full_for_a_while(dsn: str, role: str) -> Iterator[tuple[str, list[bytes]]]:
    """A DSN that leads to the server. Who asks for this role is refused with these words, each time with one of them."""
    named = conninfo_to_dict(dsn)
    refusals: list[bytes] = []

    def refused_or_passed(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            first = client.recv(65536)
            while first[4:8] in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):  # asks for encryption
                client.sendall(b"N")
                first = client.recv(65536)
            if refusals and f"role={role}".encode() in first:
                words = refusals.pop()
                client.sendall(b"E" + struct.pack("!I", len(words) + 4) + words)
                return
            with connected(named) as server:
                server.sendall(first)
                back = threading.Thread(target=copied, args=(server, client), daemon=True)
                back.start()
                copied(client, server)
                back.join()

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=refused_or_passed, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        yield make_conninfo(dsn, host="127.0.0.1", port=listener.getsockname()[1], sslmode="disable"), refusals
        listener.shutdown(socket.SHUT_RDWR)


def connected(named: dict[str, Any]) -> socket.socket:
    host, port = str(named["host"]), int(str(named.get("port") or 5432))
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{host}/.s.PGSQL.{port}")
    return server


def copied(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


FULL = b"SFATAL\0VFATAL\0C53300\0Msorry, too many clients already\0\0"
NO_OPTIONS = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter in options: role\0\0"


def test_a_full_server_takes_no_role_from_us(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    async def users(through: str) -> list[str]:
        service = Service(through, limits=QUICK)
        await service.open()
        try:
            return [await database.run(WHO) for database in (service.read, service.enqueue, service.operate)]
        finally:
            await service.close()

    with full_for_a_while(dsn, "faultline_producer") as (through, refusals):
        refusals.append(FULL)
        with pytest.raises(DatabaseUnavailable, match="too many clients"):
            asyncio.run(roles.dsn_as(through, "faultline_producer", statement_seconds=5))
        refusals.append(FULL)
        found = asyncio.run(users(through))

    assert found == ["faultline_viewer", "faultline_producer", "faultline_operator"]
    assert "role_not_taken" not in [record.getMessage() for record in caplog.records]


def test_a_pooler_that_passes_no_options_on_is_used_without(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    with full_for_a_while(dsn, "faultline_producer") as (through, refusals):
        refusals.append(NO_OPTIONS)
        chosen = asyncio.run(roles.dsn_as(through, "faultline_producer", statement_seconds=5))

    assert "faultline_producer" not in chosen
    assert "statement_timeout=5000" in chosen
    assert "role_not_taken" in [record.getMessage() for record in caplog.records]

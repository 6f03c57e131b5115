"""A wire that fails at a named statement. It stands between one client and the server, and follows what they say.

A cut comes either before the statement reaches the server, or after the server has committed it and before the answer
is passed on: to the client both look the same. It either closes the connection or makes it half-open: every packet is
lost from then on, and nobody is told.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import re
import socket
import struct
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg.conninfo import make_conninfo

from faultline_proof.verdict import CannotPlay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Linux: what a program of one instruction lets through reaches the socket. This one lets through nothing, so packets are
# not even acknowledged, as if the machine had lost its power.
_ATTACH_FILTER = 26
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)

_READY = b"Z"  # the server has dealt with a statement and says whether a transaction is open


class Moment(enum.Enum):
    BEFORE_SENT = "before the statement reached the server"
    AFTER_COMMITTED = "after the server had committed and before its answer came"


@dataclass(slots=True, eq=False)
class Cut:
    """What is to happen to the first connection that sends a statement which this pattern is found in.

    Only statements that commit are looked at: `commit`, and those outside a transaction.
    """

    pattern: re.Pattern[str]
    moment: Moment
    #: Lose every packet from then on instead of closing the connection.
    silently: bool = False
    happened: threading.Event = field(default_factory=threading.Event)

    @property
    def what(self) -> str:
        return f"{'silence' if self.silently else 'cut'} {self.moment.value}"


class Proxy:
    """Listens on this machine only. `dsn` leads through it to the database of the DSN that was given.

    `tell` is told of every cut as it happens.
    """

    def __init__(self, dsn: str, tell: Callable[..., None]) -> None:
        self.tell = tell
        self._upstream: str | tuple[str, int]
        self.lead_to(dsn)
        self._entrance = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(
            dsn, host="127.0.0.1", port=self._entrance.getsockname()[1], sslmode="disable", gssencmode="disable"
        )
        self._cuts: list[Cut] = []
        self._wires: list[_Wire] = []
        self._changed = threading.Lock()
        #: How often each statement was passed on.
        self._passed: Counter[str] = Counter()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lead_to(self, dsn: str) -> None:
        """From now on, new connections go to the server of this DSN. Those that are open stay where they are."""
        with psycopg.connect(dsn) as connection:
            host, port = connection.info.host, connection.info.port
        self._upstream = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)

    def close(self) -> None:
        """Cut every connection, for good."""
        _close(self._entrance)
        for wire in self._wires:
            wire.close()

    def cut(self, pattern: str, moment: Moment, *, silently: bool = False) -> Cut:
        """Arm one cut. It happens once."""
        if silently and sys.platform != "linux":
            raise CannotPlay("only Linux can make a connection half-open without special rights")
        cut = Cut(re.compile(pattern), moment, silently)
        with self._changed:
            self._cuts.append(cut)
        return cut

    def passed(self, pattern: str) -> int:
        """How many committing statements which this pattern is found in have been passed on to the server."""
        with self._changed:
            return sum(times for text, times in self._passed.items() if re.search(pattern, text))

    def end_silent_wires(self) -> None:
        """Close the server's end of every half-open connection, as the server does when it has waited long enough."""
        for wire in self._wires:
            if wire.silent:
                wire.end_server()

    def sees(self, statement: str) -> Cut | None:
        """Called for every committing statement of a client. Answers with the cut that it meets, if any."""
        with self._changed:
            cut = next((cut for cut in self._cuts if cut.pattern.search(statement)), None)
            if cut is not None:
                self._cuts.remove(cut)
            if cut is None or cut.moment is Moment.AFTER_COMMITTED:
                self._passed[statement] += 1
            return cut

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._entrance.accept()
            except OSError:
                return  # closed: the drill is over
            try:
                server = _connected(self._upstream)
            except OSError:
                client.close()
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire = _Wire(self, client, server)
            self._wires.append(wire)
            for direction in (wire.forward, wire.back):
                threading.Thread(target=direction, name="proxy-wire", daemon=True).start()


class _Wire:
    """One connection, with a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._cut: Cut | None = None
        self._in_transaction = False
        self.silent = False

    def forward(self) -> None:
        with self._until_closed():
            for message in _messages(self._client, greeting=True):
                statement = _statement(message)
                cut = self._proxy.sees(statement) if statement is not None and self._commits(statement) else None
                if cut is not None and cut.moment is Moment.BEFORE_SENT:
                    self._happen(cut)
                    return
                # Noted first: nothing of the answer may slip through.
                self._cut = cut or self._cut
                self._server.sendall(message)

    def back(self) -> None:
        with self._until_closed():
            for message in _messages(self._server):
                if message.startswith(_READY):
                    self._in_transaction = message[5:6] != b"I"
                if self.silent:
                    continue
                if self._cut is None:
                    self._client.sendall(message)
                elif message.startswith(_READY):
                    self._happen(self._cut)
                    return

    def _commits(self, statement: str) -> bool:
        return statement.lower() == "commit" or not self._in_transaction

    def _happen(self, cut: Cut) -> None:
        # Said before it is done: the client may be faster than we are.
        self._proxy.tell("wire_cut", at_statement=cut.pattern.pattern, what=cut.what)
        cut.happened.set()
        if cut.silently:
            _lose_all_packets(self._client)
            self.silent = True
        else:
            self.close()

    def close(self) -> None:
        for end in (self._client, self._server):
            _close(end)

    def end_server(self) -> None:
        _close(self._server)

    @contextlib.contextmanager
    def _until_closed(self) -> Iterator[None]:
        try:
            with contextlib.suppress(OSError):
                yield
        finally:
            if not self.silent:
                self.close()


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)  # wakes up the thread that reads from it
    end.close()


def _connected(upstream: str | tuple[str, int]) -> socket.socket:
    if isinstance(upstream, tuple):
        return socket.create_connection(upstream)
    opened = socket.socket(socket.AF_UNIX)
    opened.connect(upstream)
    return opened


def _messages(end: socket.socket, *, greeting: bool = False) -> Iterator[bytes]:
    """The messages of PostgreSQL's protocol: a letter, a length that counts itself, the rest. A greeting has no letter."""
    received = bytearray()
    while chunk := end.recv(65536):
        received += chunk
        while len(received) >= (head := 4 if greeting else 5):
            size = int.from_bytes(received[head - 4 : head], "big") + head - 4
            if len(received) < size:
                break
            yield bytes(received[:size])
            del received[:size]
            greeting = False


def _statement(message: bytes) -> str | None:
    """The text of a statement that a client sends; None for all other messages."""
    match message[:1]:
        case b"Q":
            return message[5:-1].decode(errors="replace")
        case b"P":
            return message[5:].split(b"\0")[1].decode(errors="replace")
    return None


def _lose_all_packets(end: socket.socket) -> None:
    program = ctypes.create_string_buffer(_DROP_ALL)
    end.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def noticing_silence_after(seconds: int) -> dict[str, int]:
    """Settings for connections that notice a half-open wire sooner than in production. No drill waits that long."""
    return {
        "keepalives_idle": seconds,
        "keepalives_interval": seconds,
        "keepalives_count": 1,
        "tcp_user_timeout": 1000 * seconds,
    }

"""The servers behind one DSN, as this process knows them: which one answered last, and how new its history is.

The one that answered is tried first, so that a frozen host at the head of the DSN costs its time once and not for every
connection. A server whose history is older than one that was seen is refused: an old primary that wakes up after a failover
would refuse the leases that the new one has granted, and workers would abandon healthy jobs.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline.core import events
from faultline.store.rows import RowOf

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A host (or its address) and its port.
Server = tuple[str, str]

_DSNS_MAX = 256
_PORT = "5432"


class OlderServer(psycopg.OperationalError):
    """The server has an older history than one that was seen. Nothing was sent."""


class History(NamedTuple):
    """`timeline`: PostgreSQL adds one at every promotion. `recovered`: when `faultline.recover` last ran, in seconds."""

    cluster: str
    timeline: int
    recovered: float


_HISTORY = RowOf(
    History,
    cluster="(select c.system_identifier::text from pg_control_system() c)",
    # Of the log that is written now: pg_control_checkpoint() shows it only after the next checkpoint.
    timeline="('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer",
    recovered="coalesce((select extract(epoch from s.recovered_at)::float8 from faultline.settings s), 0)",
)
HISTORY = f"select {_HISTORY.columns}".encode()


class Servers:
    """What one process knows of the servers of one DSN. Threads may use it at once: each change is one assignment."""

    def __init__(self) -> None:
        self._answered: Server | None = None
        #: It took all the time, or has an older history.
        self._avoided: Server | None = None
        self._history: History | None = None
        #: Of each connection, by what lasts as long: behind one address there may be several servers.
        self._histories: WeakKeyDictionary[object, History] = WeakKeyDictionary()
        self._refused: Server | None = None

    def arranged(self, dsn: str) -> str:
        """The DSN with the hosts in the order in which to try them. What it says of them stays as it is."""
        named = conninfo_to_dict(dsn)
        lists = {name: _listed(named, name, variable) for name, variable in _VARIABLES.items()}
        servers = _servers(lists)
        if len(servers) < 2 or (named.get("load_balance_hosts") or os.environ.get("PGLOADBALANCEHOSTS")) == "random":  # noqa: PLR2004
            return dsn
        order = sorted(range(len(servers)), key=lambda n: (servers[n] == self._avoided, servers[n] != self._answered))
        if order == sorted(order):
            return dsn
        chosen = {name: ",".join(found[n] for n in order) for name, found in lists.items() if len(found) == len(servers)}
        return make_conninfo(dsn, **chosen)

    def answer(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        """It is tried first from now on."""
        self._answered = server = server_of(connection)
        if self._avoided == server:
            self._avoided = None

    def give_up(self, dsn: str) -> None:
        """The time was over before all servers were tried: next time another one comes first."""
        tried = _servers({name: _listed(conninfo_to_dict(self.arranged(dsn)), name, v) for name, v in _VARIABLES.items()})
        self._answered, self._avoided = None, tried[0] if tried else None

    def judge(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], row: tuple[Any, ...] | None) -> None:
        """Raise `OlderServer` unless the history is at least as new as what was seen.

        A lower timeline is accepted if `faultline.recover` ran there since: a backup was restored, and a person says so.
        Other clusters cannot be compared.
        """
        seen, known, server = _HISTORY.one([row or ()]), self._history, server_of(connection)
        comparable = known is not None and seen.cluster == known.cluster
        if known is not None and comparable and seen.timeline < known.timeline and seen.recovered <= known.recovered:
            self._avoided = server
            if self._refused != server:
                self._refused = server
                events.emit("older_server_refused", server=":".join(server), timeline=seen.timeline, known=known.timeline)
            raise OlderServer(
                f"{':'.join(server)} is at timeline {seen.timeline}, and this program has already seen timeline"
                f" {known.timeline}: it is an old primary or a restored backup. Stop it; or, if it is the right one,"
                " run faultline recover there"
            )
        self._histories[connection.pgconn] = seen
        self._refused = None
        self._history = seen._replace(recovered=max(seen.recovered, known.recovered)) if known and comparable else seen

    def is_current(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
        """Whether no server with a newer history was seen since this connection was opened."""
        seen, known = self._histories.get(connection.pgconn), self._history
        return seen is None or known is None or seen[:2] == known[:2]


@lru_cache(maxsize=_DSNS_MAX)
def servers_of(dsn: str) -> Servers:  # noqa: ARG001 - one for each
    return Servers()


def server_of(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Server:
    info = connection.info
    return info.host or info.hostaddr, str(info.port)


#: Each may be a list. The first two name the same servers.
_VARIABLES = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT"}


def _listed(named: dict[str, Any], name: str, variable: str) -> list[str]:
    given = str(named.get(name) or os.environ.get(variable) or "")
    return given.split(",") if given else []


def _servers(lists: dict[str, list[str]]) -> Sequence[Server]:
    hosts, ports = lists["host"] or lists["hostaddr"], lists["port"] or [_PORT]
    if len(ports) == 1:
        ports = ports * len(hosts)
    return [(host, port or _PORT) for host, port in zip(hosts, ports, strict=False)]

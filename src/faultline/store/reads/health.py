"""The health of the database: sizes, dead rows, what keeps vacuum from removing them, connections, WAL. Reads no table.

All from PostgreSQL's statistics, in one statement of a few milliseconds. Row counts are its estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from faultline.store.rows import Column, RowOf
from faultline.store.statement import Statement


@dataclass(frozen=True, slots=True)
class TableHealth:
    name: str
    rows: int
    #: Row versions that vacuum has not yet removed.
    dead_rows: int
    table_bytes: int
    index_bytes: int
    vacuumed_at: datetime | None
    analyzed_at: datetime | None

    @property
    def dead_share(self) -> float:
        return self.dead_rows / max(self.rows + self.dead_rows, 1)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the oldest snapshot: vacuum can remove no row that died since."""

    #: "session", "slot" or "prepared transaction".
    kind: str
    #: A session's process id, or a name.
    name: str
    application: str | None
    user: str | None
    state: str | None
    #: How many transactions have begun since.
    age: int
    seconds: float | None


class ConnectionLimit(NamedTuple):
    """Whose limit of connections it is, and how many are open."""

    whose: str
    used: int
    most: int


@dataclass(frozen=True, slots=True)
class Health:
    at: datetime
    version: str
    database: str
    database_bytes: int
    tables: list[TableHealth]
    #: None: there is none, or we may not see it.
    oldest_snapshot: Holder | None
    #: Whether we may see other users' sessions. If not, an old snapshot can stay hidden.
    sees_sessions: bool
    #: Without the right to see other users' sessions, their parallel workers may be counted too.
    connections: int
    connections_max: int
    #: Of the login and the database, where they have one.
    limits: list[ConnectionLimit]
    #: Connections to this database that are idle in a transaction.
    idle_in_transaction: int
    #: A position that only grows; None on a standby. Two readings make a rate: `wal_bytes_per_second`.
    wal_bytes: int | None

    @property
    def table_bytes(self) -> int:
        return sum(table.table_bytes + table.index_bytes for table in self.tables)


def health() -> Statement[Health]:
    return Statement(name="health", sql=_HEALTH, params=(), read=_ROW.one, repeatable=True, reads=True)


def wal_bytes_per_second(before: Health | None, after: Health) -> float | None:
    """How much WAL the whole server wrote between two readings. None: too close together, or unknown."""
    if before is None or before.wal_bytes is None or after.wal_bytes is None or after.wal_bytes < before.wal_bytes:
        return None
    seconds = (after.at - before.at).total_seconds()
    return (after.wal_bytes - before.wal_bytes) / seconds if seconds >= 0.5 else None  # noqa: PLR2004 - too short to tell


def _table(facts: dict[str, Any]) -> TableHealth:
    times = {name: datetime.fromisoformat(facts[name]) if facts[name] else None for name in ("vacuumed_at", "analyzed_at")}
    return TableHealth(**(facts | times))


_ROW = RowOf(
    Health,
    at="clock_timestamp()",
    version="current_setting('server_version')",
    database="current_database()::text",
    database_bytes="pg_database_size(current_database())",
    tables=Column(
        "(select json_agg(t order by t.table_bytes + t.index_bytes desc, t.name) from tables t)",
        lambda tables: [_table(table) for table in tables or ()],
    ),
    oldest_snapshot=Column(
        "(select row_to_json(h) from holders h order by h.age desc, h.seconds desc nulls last limit 1)",
        lambda snapshot: Holder(**snapshot) if snapshot else None,
    ),
    sees_sessions="pg_has_role('pg_read_all_stats', 'usage')",
    # Not every login sees the kind of other logins' sessions, but every login sees whose they are: only clients have one.
    connections="(select count(*) from pg_stat_activity a"
    " where coalesce(a.backend_type = 'client backend', a.datid is not null and a.usesysid is not null))",
    connections_max="current_setting('max_connections')::integer",
    limits=Column("(select json_agg(l) from limits l)", lambda limits: [ConnectionLimit(**limit) for limit in limits or ()]),
    idle_in_transaction="(select count(*) from pg_stat_activity a"
    " where a.datname = current_database() and a.state like 'idle in transaction%%')",
    wal_bytes="case when not pg_is_in_recovery() then pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint end",
)

_HEALTH = f"""
with tables as (
  select
    s.relname as name,
    greatest(s.n_live_tup, 0) as rows,
    greatest(s.n_dead_tup, 0) as dead_rows,
    pg_table_size(s.relid) as table_bytes,
    pg_indexes_size(s.relid) as index_bytes,
    greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at,
    greatest(s.last_analyze, s.last_autoanalyze) as analyzed_at
  from pg_stat_user_tables s
  where s.schemaname = 'faultline'
),
holders as (
  select
    'session' as kind, a.pid::text as name, nullif(a.application_name, '') as application, a.usename::text as user,
    a.state, age(a.backend_xmin) as age, extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds
  from pg_stat_activity a
  -- Not our own snapshot.
  where a.backend_xmin is not null and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
  union all
  select
    'slot', r.slot_name::text, r.plugin::text, null, case when r.active then 'active' else 'inactive' end,
    greatest(age(r.xmin), age(r.catalog_xmin)), null
  from pg_replication_slots r
  where r.xmin is not null or r.catalog_xmin is not null
  union all
  select
    'prepared transaction', p.gid, null, p.owner::text, 'prepared', age(p.transaction),
    extract(epoch from clock_timestamp() - p.prepared)::float8
  from pg_prepared_xacts p
),
limits as (
  select 'the login ' || r.rolname as whose, r.rolconnlimit as most,
    (select count(*) from pg_stat_activity a where a.usesysid = r.oid) as used
  from pg_roles r where r.rolname = session_user and r.rolconnlimit >= 0 and not r.rolsuper
  union all
  select 'the database ' || d.datname, d.datconnlimit, (select count(*) from pg_stat_activity a where a.datid = d.oid)
  from pg_database d where d.datname = current_database() and d.datconnlimit >= 0
)
select {_ROW.columns}
"""

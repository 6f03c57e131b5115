"""Who holds the accounts of limits: transactions that stay open after a claim. Meanwhile their queues grant nothing."""

from __future__ import annotations

from dataclasses import dataclass

from faultline.store.rows import RowOf
from faultline.store.statement import Statement


@dataclass(frozen=True, slots=True)
class LimitHolder:
    """An open transaction that has locked rows of `faultline.limited_queues`, or a prepared one of this database."""

    #: "session" or "prepared transaction".
    kind: str
    #: A session's process id, or the name of a prepared transaction.
    name: str
    login: str | None
    application: str | None
    seconds: float | None
    #: A session that works on. The others are idle in their transaction, or have none to be idle in.
    at_work: bool
    #: It holds accounts of limits: claims of their queues wait for it.
    holds_limits: bool


_HOLDER = RowOf(LimitHolder)


def limit_holders() -> Statement[list[LimitHolder]]:
    """Prepared transactions, which outlive every session, and sessions in a transaction with such a lock."""
    return Statement(
        name="limits",
        sql=f"""
select {_HOLDER.columns}
from (
  select
    'prepared transaction' as kind, p.gid as name, p.owner::text as login, null as application,
    extract(epoch from clock_timestamp() - p.prepared)::float8 as seconds, false as at_work,
    exists (
      select from pg_locks own
      join pg_locks l on l.virtualtransaction = own.virtualtransaction and l.pid is null
      where own.locktype = 'transactionid' and own.transactionid = p.transaction and own.pid is null
        and l.relation = 'faultline.limited_queues'::regclass and l.mode <> 'AccessShareLock'
    ) as holds_limits
  from pg_prepared_xacts p
  where p.database = current_database()
  union all
  select
    'session', a.pid::text, a.usename::text, nullif(a.application_name, ''),
    extract(epoch from clock_timestamp() - case when a.state = 'active' then a.xact_start else a.state_change end)::float8,
    a.state = 'active', true
  from pg_stat_activity a
  where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
    -- Who waits for a lock waits for the one that holds it, maybe.
    and (a.state like 'idle in transaction%%' or a.state = 'active' and a.wait_event_type is distinct from 'Lock')
    and exists (
      select from pg_locks l
      where l.pid = a.pid and l.relation = 'faultline.limited_queues'::regclass and l.mode <> 'AccessShareLock'
    )
) h
order by h.holds_limits desc, h.seconds desc nulls last
limit 20
""",
        params=(),
        read=_HOLDER.many,
        repeatable=True,
        reads=True,
    )

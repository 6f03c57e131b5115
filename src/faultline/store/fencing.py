"""The statements of a job's own transaction. They know which transaction was fenced; the database refuses them in others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.store import verbs
from faultline.store.rows import values
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from faultline.core.model import Lease, Unwritten


#: A frozen worker must not keep the job's row locked in a session that has no such limit, or a longer one.
_LIMITED = (
    ", set_config('idle_in_transaction_session_timeout', case when current_setting('idle_in_transaction_session_timeout')"
    "::interval between '1 ms' and '60 s' then current_setting('idle_in_transaction_session_timeout') else '60s' end, true)"
)


def fence(lease: Lease, *, limits_idling: bool = False) -> Statement[int]:
    """Guard the effects that follow in this transaction. Returns its number. Raises `StaleLease`.

    `limits_idling`: the session is not the engine's. For this transaction it gets the engine's limit of idle time.
    """
    return Statement(
        name="fence",
        sql=f"select pg_current_xact_id()::text{_LIMITED if limits_idling else ''} from faultline.fence(%s, %s, %s)",
        params=(lease.job_id, lease.fencing_token, lease.owner),
        read=lambda rows: int(rows[0][0]),
    )


def check(number: int) -> Statement[None]:
    """Raises `FenceBroken` unless this is still the transaction that was fenced."""
    return Statement("same_transaction", f"select {_is_in(number)}", (), lambda _: None)


def complete(lease: Lease, result: str, number: int) -> Statement[Unwritten]:
    """Complete the job in the fenced transaction. In any other one, raises `FenceBroken` and writes nothing."""
    return verbs.complete([lease], [result], only_if=_is_in(number))


def cancel_itself() -> Statement[None]:
    """Always cancelled. Raises this server's message for a cancelled statement, in its language."""
    # A statement that ends at once may not notice the cancel; the sleep makes sure that it does.
    return Statement("cancel_itself", "select pg_cancel_backend(pg_backend_pid()), pg_sleep(1)", (), lambda _: None)


def may_end_jobs() -> Statement[bool]:
    """Whether the login has the rights that the end of a job's transaction needs."""
    return Statement(
        "may_end_jobs",
        "select has_schema_privilege(session_user, n.oid, 'usage')"
        " and bool_and(has_function_privilege(session_user, p.oid, 'execute'))"
        " from pg_namespace n join pg_proc p on p.pronamespace = n.oid"
        " where n.nspname = 'faultline' and p.proname in ('complete', 'renew', 'same_transaction') group by n.oid",
        (),
        lambda rows: values(rows) == [True],
        reads=True,
    )


def _is_in(number: int) -> str:
    # In the text, not a parameter: the number differs between runs, and recorded parameters must not.
    return f"faultline.same_transaction('{number:d}')"

"""Time and durability, on which every promise stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.store import verbs
from faultline.store.reads import cancellable, failures
from faultline.store.verbs import access
from faultline_proof.probes.probe import expect, probe
from faultline_proof.probes.writes import VERBS

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions


@probe("now", "clock")
def no_session_can_move_the_databases_idea_of_time(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        for setting in ("faultline.now", "faultline.clock"):
            q.execute("select set_config(%s, '2100-01-01', true)", setting)
        q.fence(lease)
        expect("reaped", q.reap(), [])
        expect("what time it is", q.value("select greatest(faultline.now(), faultline.clock()) < '2100-01-01'"), True)


@probe("now")
def time_goes_on_within_a_transaction(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    q.begin()
    q.execute("select 1")
    job_id = other.enqueue()
    expect("claimed", [lease.job_id for lease in q.claim()], [job_id])
    expect("that is later", q.value("select faultline.now() > transaction_timestamp()"), True)


_CALLS: dict[str, Callable[[Session, Lease], Any]] = {
    **VERBS,
    "enqueue_many": lambda q, _: q.enqueue(),
    "enqueue": lambda q, _: q.execute("select faultline.enqueue('t')"),
    "enqueue_one": lambda q, _: q.execute(
        "select faultline.enqueue_one(faultline.new_id(1), 't', '{}', 'default', 0, 5, 30, true, null, true)"
    ),
    "claim": lambda q, _: q.claim_one(),
    "fence": lambda q, lease: q.fence(lease),
    "reap": lambda q, _: q.reap(),
    "reconcile": lambda q, _: q.run(verbs.reconcile()),
    "recover": lambda q, _: q.run(verbs.recover()),
    "cancel": lambda q, lease: q.run(verbs.cancel(lease.job_id)),
}
#: Lost to a crash they are made again: a renewal by the next one, progress by the next one, a beat by the next one.
_MAY_BE_LOST = {"renew", "progress"}


@probe("require_synchronous_commit")
def what_was_acknowledged_is_durable_where_the_sessions_default_is_not(sessions: Sessions) -> None:
    q = sessions.open()
    for verb, call in _CALLS.items():
        level = "off" if verb in _MAY_BE_LOST else "on"
        expect(f"synchronous_commit after {verb}", _level_after(q, call), level)
    for verb in ("renew", "progress", "step"):
        level = _level_after(q, VERBS[verb], first=lambda q, lease: q.release(lease))
        expect(f"synchronous_commit after a refused {verb}", level, "on")


@probe("require_synchronous_commit")
def what_operators_and_refused_fences_leave_behind_is_durable(sessions: Sessions) -> None:
    q = sessions.open()
    retried = _level_after(
        q, lambda q, lease: q.run(verbs.retry(lease.job_id)), first=lambda q, lease: q.fail(lease, then="fail")
    )
    expect("synchronous_commit after retry", retried, "on")
    bulk = _level_after(
        q, lambda q, _: q.run(failures.retry(failures.FailedFilter())), first=lambda q, lease: q.fail(lease, then="fail")
    )
    expect("synchronous_commit after retry_failed", bulk, "on")
    together = _level_after(q, lambda q, _: q.run(cancellable.cancel(cancellable.UnendedFilter("default"))))
    expect("synchronous_commit after cancel_jobs", together, "on")
    key = access.add(UUID(int=1), bytes(32), name="n", scopes=["read"])
    expect("synchronous_commit after add_api_key", _level_after(q, lambda q, _: q.run(key)), "on")
    revoked = _level_after(q, lambda q, _: q.run(access.revoke(UUID(int=1))))
    expect("synchronous_commit after revoke_api_key", revoked, "on")
    refused = _level_after(q, lambda q, lease: q.run(verbs.record_refusal(lease)), first=_expire)
    expect("synchronous_commit after record_refusal", refused, "on")
    changed = _level_after(q, lambda q, _: q.run(verbs.change_setting("args_bytes_max", 2000)))
    expect("synchronous_commit after change_setting", changed, "on")
    expect("synchronous_commit after pause", _level_after(q, _pause), "on")
    expect("synchronous_commit after resume", _level_after(q, _resume, first=_pause), "on")


def _pause(q: Session, _: Lease) -> None:
    q.run(verbs.pause("default"))


def _resume(q: Session, _: Lease) -> None:
    q.run(verbs.resume("default"))


def _expire(q: Session, lease: Lease) -> None:
    q.execute("update faultline.open_jobs set lease_expires_at = created_at where id = %s", lease.job_id)


def _level_after(
    q: Session, call: Callable[[Session, Lease], Any], *, first: Callable[[Session, Lease], Any] = lambda _, __: None
) -> str:
    with q.unsaved():
        lease = q.new_lease()
        q.enqueue()
        first(q, lease)
        q.execute("set local synchronous_commit = off")
        call(q, lease)
        return str(q.value("show synchronous_commit"))


@probe("require_synchronous_commit")
def other_levels_are_left_alone_and_the_session_keeps_its_own(sessions: Sessions) -> None:
    q = sessions.open()
    for before, within in (("local", "local"), ("remote_apply", "remote_apply"), ("off", "on")):
        q.execute("select set_config('synchronous_commit', %s, false)", before)
        q.begin()
        q.enqueue()
        expect(f"with {before}", q.value("show synchronous_commit"), within)
        q.commit()
        expect("afterwards", q.value("show synchronous_commit"), before)

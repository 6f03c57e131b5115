"""Who did it, and why: what the journal tells of cancel, retry, pause, resume and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.store import verbs
from faultline.store.reads import cancellable, failures
from faultline.store.verbs import access
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.store.statement import Statement
    from faultline_proof.sessions import Session, Sessions


_OPERATOR = "faultline_operator"


def _told(q: Session) -> list[tuple[Any, ...]]:
    """What people did, in order: what, who by their own word, by which login, why."""
    return q.execute(
        "select event, detail ->> 'by', detail ->> 'login', detail ->> 'reason' from faultline.journal"
        " where event <> 'attempt_failed' order by id"
    )


@probe(
    "cancel",
    "cancel_jobs",
    "retry",
    "retry_failed",
    "requeue_ended_jobs",
    "pause",
    "resume",
    "add_api_key",
    "revoke_api_key",
    "signature",
)
def who_did_it_and_why_stands_in_the_journal(sessions: Sessions) -> None:
    q = sessions.open()
    login = q.value("select session_user")
    with q.unsaved():
        waiting, failed, key = q.enqueue(delay_seconds=60), q.new_lease(), UUID(int=1)
        q.fail(failed, then="fail")
        q.execute("set local role faultline_operator")
        q.run(verbs.cancel(waiting, "one", by="a"))
        q.run(verbs.retry(waiting, by="b", reason="two"))
        q.run(failures.retry(failures.FailedFilter(), by="c", reason="three"))
        q.run(cancellable.cancel(cancellable.UnendedFilter("default"), max_jobs=1, by="h", reason="eight"))
        q.run(verbs.pause("q", "four", by="d"))
        q.run(verbs.resume("q", by="e", reason="five"))
        q.run(verbs.resume("q", by="e", reason="five"))
        q.execute("reset role")
        q.run(access.add(key, bytes(32), name="k", scopes=["read"], queues=["a"], by="f", reason="six"))
        q.run(access.revoke(key, by="g", reason="seven"))
        q.run(access.revoke(key, by="g", reason="seven"))
        expect(
            "told",
            _told(q),
            [
                ("cancelled", "a", login, "one"),
                ("retried", "b", login, "two"),
                ("retried", "c", login, "three"),
                ("cancelled", "h", login, "eight"),
                ("paused", "d", login, "four"),
                ("resumed", "e", login, "five"),
                ("api_key_added", "f", login, "six"),
                ("api_key_revoked", "g", login, "seven"),
            ],
        )
        told = q.execute("select detail from faultline.journal where event like 'api_key%' order by id")
        for (detail,), facts in zip(told, ({"scopes": ["read"], "queues": ["a"], "expires_at": None}, {}), strict=True):
            signed = {name: detail.pop(name) for name in ("by", "login", "reason")}
            expect(f"of a key, besides {signed}", detail, {"key": str(key), "name": "k", **facts})


@probe("cancel", "retry", "retry_failed", "requeue_ended_jobs", "pause", "resume", "signature")
def without_a_name_it_was_the_login(sessions: Sessions) -> None:
    q = sessions.open()
    login = q.value("select session_user")
    with q.unsaved():
        waiting, failed = q.enqueue(delay_seconds=60), q.new_lease()
        q.fail(failed, then="fail")
        for call in ("cancel(%s, 'why')", "retry(%s)"):
            q.execute(f"select faultline.{call}", waiting)
        q.execute("select faultline.retry_failed()")
        q.execute("select faultline.pause('q', 'why'), faultline.resume('q')")
        wanted = [("cancelled", "why"), ("retried", None), ("retried", None), ("paused", "why"), ("resumed", None)]
        expect("told", _told(q), [(event, login, login, reason) for event, reason in wanted])


@probe("cancel", "pause")
def what_was_rolled_back_was_not_done_and_is_not_told(sessions: Sessions) -> None:
    q = sessions.open()
    job_id = q.enqueue()
    with q.unsaved():
        q.run(verbs.cancel(job_id, by="me"))
        q.run(verbs.pause("q", by="me"))
    expect("the job", q.state(job_id), "queued")
    expect("told", _told(q), [])


@probe("pause", "signature")
def a_pause_is_told_once_unless_somebody_changes_it(sessions: Sessions) -> None:
    q = sessions.open()
    login = q.value("select session_user")
    with q.unsaved():
        q.run(verbs.pause("q"))
        expect("by the login", q.value("select paused_by from faultline.queues"), login)
        for by, reason in (("a (login b)", "x" * 1000), ("a (login b)", "x" * 1000), ("a (login b)", "y"), ("c", "y")):
            q.run(verbs.pause("q", reason, by=by))
            expect("who", q.value("select paused_by from faultline.queues"), f"{by} (login {login})")
        found = [(by, reason and len(reason)) for _, by, _, reason in _told(q)]
        expect("told", found, [(login, None), ("a (login b)", 1000), ("a (login b)", 1), ("c", 1)])


@probe("change_setting", "signature")
def a_changed_setting_is_told_once_with_what_it_was(sessions: Sessions) -> None:
    q = sessions.open()
    login = q.value("select session_user")
    with q.unsaved():
        q.execute("set local role faultline_operator")
        answers = [q.run(verbs.change_setting("args_bytes_max", value, "why", by="a")) for value in (2000, 2000, 3000)]
        expect("answers", answers, [1048576, 2000, 2000])
        expect("told", _told(q), [("setting_changed", "a", login, "why")] * 2)
        detail = q.execute(
            "select detail ->> 'setting', detail -> 'was', detail -> 'value' from faultline.journal order by id"
        )
        expect("detail", detail, [("args_bytes_max", 1048576, 2000), ("args_bytes_max", 2000, 3000)])
        expect("set", q.value("select args_bytes_max from faultline.settings"), 3000)


@probe("change_setting")
def a_setting_stays_within_its_bounds_and_no_other_column_is_one(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for name in ("token_floor", "only_row", "server_run", "", "args_bytes_max "):
            with refused(q, "FL005", "there is no setting named", what=name):
                q.run(verbs.change_setting(name, 2000))
        for name, least, greatest in (("result_bytes_max", 1024, 67108864), ("keep_keys_seconds", 0, 3155760000)):
            for value in (least, greatest):
                q.run(verbs.change_setting(name, value))
            for value in (least - 1, greatest + 1):
                with refused(
                    q, "FL005", f"{name} must be a whole number from {least} to {greatest}", what=f"{name} {value}"
                ):
                    q.run(verbs.change_setting(name, value))


@probe("signature")
def the_login_is_told_and_not_the_role_that_the_verb_runs_in(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.execute("set local session authorization faultline_operator")
        q.run(verbs.pause("q", by="the owner"))
        q.run(verbs.resume("q"))
        expect("told", [row[1:3] for row in _told(q)], [("the owner", _OPERATOR), (_OPERATOR, _OPERATOR)])


@probe("signature", "cancel", "pause")
def what_would_make_the_journal_lie_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        waiting, failed, key = q.enqueue(), q.new_lease(), UUID(int=1)
        q.fail(failed, then="fail")
        which = cancellable.UnendedFilter("default")
        calls: dict[str, Callable[..., Statement[Any]]] = {
            "cancel": lambda by=None, reason=None: verbs.cancel(waiting, reason, by=by),
            "cancel_jobs": lambda by=None, reason=None: cancellable.cancel(which, by=by, reason=reason),
            "retry": lambda by=None, reason=None: verbs.retry(failed.job_id, by=by, reason=reason),
            "retry_failed": lambda by=None, reason=None: failures.retry(failures.FailedFilter(), by=by, reason=reason),
            "pause": lambda by=None, reason=None: verbs.pause("q", reason, by=by),
            "resume": lambda by=None, reason=None: verbs.resume("q", by=by, reason=reason),
            "revoke_api_key": lambda by=None, reason=None: access.revoke(key, by=by, reason=reason),
        }
        for verb, call in calls.items():
            for by in ("", "x" * 201, "a\x1bb", "a\nb", "a\x7fb", "a\u200fb", "a\u202eb", "a\u2066b", "a\u2028b"):
                with refused(q, "FL005", "by has", what=f"{verb} by {by!r}"):
                    q.run(call(by=by))
            for reason in ("x" * 1001, "\x01", "a\x1bb", "a\x9fb", "a\u202eb", "a\u2067b"):
                with refused(q, "FL005", "the reason has", what=f"{verb}, reason {reason[:9]!r}"):
                    q.run(call(reason=reason))
        expect("told", _told(q), [])
        q.run(verbs.resume("q", by="x" * 200, reason="Zeile\n\tund " + "y" * 980))

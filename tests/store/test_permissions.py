"""A login that lacks a right gets an error of ours, which names the roles that have it. Whatever is asked, and however."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import faultline
from faultline import Faultline, FaultlineError, PermissionDenied, Submission
from faultline.store.install.schema_text import definition_files
from faultline.store.translation import is_about_data, is_about_the_moment, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import NewLogin
    from tests.driver import Driver

SCHEMA = Path(faultline.__file__).parent / "schema"
ANY_JOB = UUID("0198c2e4-5d3a-7b11-9f60-2a54c0de7f01")


@contextlib.contextmanager
def application(dsn: str, role: str) -> Iterator[Faultline]:
    with Faultline(make_conninfo(dsn, options=f"-c role=faultline_{role}")) as app:
        yield app


async def acancel(app: Faultline) -> None:
    async with app:
        await app.acancel(ANY_JOB)


@pytest.mark.parametrize(
    ("role", "call", "allowed"),
    [
        ("worker", lambda app: app.cancel(ANY_JOB), "faultline_producer or faultline_operator"),
        ("worker", lambda app: asyncio.run(acancel(app)), "faultline_producer or faultline_operator"),
        ("producer", lambda app: app.retry(ANY_JOB), "faultline_operator"),
        ("producer", lambda app: app.pause("mail"), "faultline_operator"),
        ("worker", lambda app: app.resume("mail"), "faultline_operator"),
        (
            "viewer",
            lambda app: app.enqueue_many([Submission("charge")]),
            "faultline_producer, faultline_worker or faultline_operator",
        ),
    ],
    ids=["cancel", "acancel", "retry", "pause", "resume", "enqueue"],
)
def test_a_call_without_the_right_says_who_has_it(
    dsn: str, role: str, call: Callable[[Faultline], object], allowed: str
) -> None:
    with application(dsn, role) as app, pytest.raises(PermissionDenied) as refused:
        call(app)

    assert str(refused.value).startswith("permission denied for function ")
    assert str(refused.value).endswith(f"; connect as a login that was granted {allowed}")
    assert isinstance(refused.value.__cause__, psycopg.errors.InsufficientPrivilege)


def test_a_call_in_the_callers_own_transaction_without_the_right_says_who_has_it(dsn: str) -> None:
    with application(dsn, "viewer") as app, psycopg.connect(app.dsn) as conn, pytest.raises(PermissionDenied):
        app.using(conn).enqueue_many([Submission("charge")])


def test_a_right_that_we_know_nothing_about_is_left_to_the_doctor() -> None:
    with pytest.raises(PermissionDenied, match="permission denied for table orders; run faultline doctor"), translated():
        raise psycopg.errors.InsufficientPrivilege("permission denied for table orders")


def test_a_lost_right_says_nothing_about_a_job_and_is_not_waited_for_at_the_start() -> None:
    refused = PermissionDenied("permission denied for function claim")

    assert isinstance(refused, FaultlineError)
    assert refused.sqlstate == psycopg.errors.InsufficientPrivilege.sqlstate
    assert not is_about_data(refused)
    assert not is_about_the_moment(refused)


#: Called by every connection, whatever its role.
EVERYONES = {"now", "clock", "protocol"}
#: `faultline api-keys` calls them as the owner: what may make keys may do everything that keys may.
OWNERS = {"add_api_key", "revoke_api_key"}


def names_of(*, internal: bool) -> set[str]:
    """The functions of all subjects: those that clients call, or those in `internal`."""
    verbs = {path.stem for path in SCHEMA.glob("*/*.sql") if path.parent.name not in ("migrations", "invariants")}
    return {one.name for one in definition_files() if one.is_function and (one.name not in verbs) is internal}


def test_roles_may_call_the_public_functions_and_the_world_none(queue: Driver) -> None:
    rows = queue.connection.execute(
        "select p.proname, has_function_privilege('public', p.oid, 'execute'),"
        " (select bool_or(has_function_privilege(r.oid, p.oid, 'execute')) from pg_roles r"
        "  where r.rolname in ('faultline_producer', 'faultline_worker', 'faultline_viewer', 'faultline_operator'))"
        " from pg_proc p where p.pronamespace = 'faultline'::regnamespace"
    ).fetchall()

    assert {name for name, _, granted in rows if granted} == names_of(internal=False) - OWNERS | EVERYONES
    assert [name for name, everyone, _ in rows if everyone] == []


def test_a_login_with_every_role_can_call_no_internal_function(dsn: str, queue: Driver, new_login: NewLogin) -> None:
    calls = [
        f"select faultline.{name}({', '.join(f'null::{kind}' for kind in kinds)})"
        for name, kinds in queue.connection.execute(
            "select p.proname, array(select format_type(t, null) from unnest(p.proargtypes::oid[]) t) from pg_proc p"
            " where p.pronamespace = 'faultline'::regnamespace and p.proname = any (%s)"
            " and p.prorettype <> 'trigger'::regtype",
            (sorted(names_of(internal=True) - EVERYONES | OWNERS),),
        ).fetchall()
    ]
    everything = "in role faultline_producer, faultline_worker, faultline_viewer, faultline_operator"

    with psycopg.connect(dsn, user=new_login(everything), autocommit=True) as login:
        login.execute("set search_path = faultline")
        for call in calls:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for function"):
                login.execute(call.encode())

    assert len(calls) > 100

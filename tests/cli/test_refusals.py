"""What a login that may not do something is told: what it lacks, never what it has already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import DiagnosticField

from faultline.core.errors import PermissionDenied
from faultline.store.install.rights import advice
from faultline.store.translation import translated
from tests.cli.commands import faultline

if TYPE_CHECKING:
    from tests.driver import Driver

NOBODY = "0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"
GRANTED = "connect as a login that was granted"
OWNER = "only the owner of the schema faultline may do that: connect as that login"


@pytest.mark.parametrize(
    ("role", "words", "todo"),
    [
        ("viewer", ("cancel", NOBODY), f"{GRANTED} faultline_producer or faultline_operator"),
        ("viewer", ("enqueue", "t"), f"{GRANTED} faultline_producer, faultline_worker or faultline_operator"),
        ("producer", ("retry", NOBODY), f"{GRANTED} faultline_operator"),
        ("producer", ("retry", "--failed", "--yes"), f"{GRANTED} faultline_operator"),
        ("worker", ("recover",), f"{GRANTED} faultline_operator"),
        ("producer", ("workers",), f"{GRANTED} faultline_viewer or faultline_operator"),
        ("operator", ("api-keys", "create", "x", "--scope", "read"), OWNER),
        ("operator", ("api-keys", "revoke", NOBODY), OWNER),
    ],
)
def test_a_login_without_the_right_is_told_who_has_it(
    queue: Driver, dsn: str, role: str, words: tuple[str, ...], todo: str
) -> None:
    asked = faultline(*words, "--dsn", f"{dsn} options='-c role=faultline_{role}'")

    assert (asked.returncode, asked.stdout) == (1, ""), queue
    assert asked.stderr.startswith("faultline: permission denied for ")
    assert asked.stderr.endswith(f"; {todo}\n")


def test_the_first_migration_of_a_login_that_may_create_nothing_is_told_what_to_grant(queue: Driver, empty_dsn: str) -> None:
    queue.connection.execute("select 1")  # with the roles, which the first database of a server has made

    asked = faultline("migrate", "--dsn", f"{empty_dsn} options='-c role=faultline_viewer'")

    name = conninfo_to_dict(empty_dsn)["dbname"]
    told = f"as the owner of the database: grant create on database {name} to this login"
    assert asked.stderr == f"faultline: permission denied for database {name}; {told}\n"


@pytest.mark.parametrize(
    "message",
    [
        "permission denied for function cancel",
        "keine Berechtigung für Funktion cancel",
        'წვდომა აკრძალულია ფუნქციაზე: "cancel"',
        "関数 cancel へのアクセスが拒否されました",
        "cancel 함수 접근 권한 없음",
    ],
    ids=["en", "de", "ka", "ja", "ko"],
)
def test_a_refusal_in_any_language_is_told_who_has_the_right(message: str) -> None:
    with pytest.raises(PermissionDenied) as refused, translated():
        raise refusal(message)

    assert str(refused.value) == f"{message}; {GRANTED} faultline_producer or faultline_operator"


@pytest.mark.parametrize(
    ("message", "source"),
    [
        ("permission denied for table orders", "aclcheck_error"),
        ("permission denied to create role", "CreateRole"),
        ("permission denied to cancel query", "pg_cancel_backend"),
    ],
)
def test_what_is_not_ours_gets_no_advice_of_ours(message: str, source: str) -> None:
    assert advice(refusal(message, source)) is None


def refusal(message: str, source: str = "aclcheck_error") -> psycopg.errors.InsufficientPrivilege:
    """As a server raises it whose lc_messages says so."""
    fields: dict[int, bytes | None] = dict.fromkeys(map(int, DiagnosticField))
    fields[DiagnosticField.MESSAGE_PRIMARY] = message.encode()
    fields[DiagnosticField.SOURCE_FUNCTION] = source.encode()
    return psycopg.errors.InsufficientPrivilege(message, info=fields)

"""Which jobs go to the database as parameters, and which as a document."""

from __future__ import annotations

from uuid import UUID

import pytest

from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import verbs


def function_of(job: Submission, *, appears_late: bool = False) -> str:
    statement = verbs.enqueue_many([job], Ids(), appears_late=appears_late)
    return statement.sql.partition("faultline.")[2].partition("(")[0]


@pytest.mark.parametrize(
    "job",
    [
        Submission("t"),
        Submission("größe", queue="épices", priority=-3, max_attempts=1, lease_seconds=5, keep_args=False),
        Submission("t", lease_seconds=0.5, trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ],
)
def test_a_plain_job_goes_as_parameters(job: Submission) -> None:
    assert function_of(job) == "enqueue_one"


@pytest.mark.parametrize(
    "unusual",
    [
        {"idempotency_key": "k"},
        {"id": UUID("01a1f605-fa77-7053-8000-04701448ed62")},
        {"group": "g"},
        {"delay_seconds": 1.0},
        {"expires_seconds": 1.0},
        {"digest": "d"},
        {"unique": {}},
        # Read or refused by the document's rules: a priority of 1.5 must not become 2.
        {"priority": 1.5},
        {"priority": True},
        {"max_attempts": 1.5},
        {"keep_args": 0},
        {"lease_seconds": "7"},
        {"queue": 5},
        {"queue": "a\0b"},
        {"queue": "\ud800"},
        {"trace": "a\0b"},
    ],
    ids=str,
)
def test_what_is_unusual_goes_as_a_document(unusual: dict[str, object]) -> None:
    job = Submission("t", **unusual)  # type: ignore[arg-type]  # callers without a type checker

    assert "enqueue_one" not in _sql_or_refusal(job)


def _sql_or_refusal(job: Submission) -> str:
    try:
        return function_of(job)
    except Exception as refused:  # noqa: BLE001 - whichever way the document refuses it
        return str(refused)


def test_in_a_callers_transaction_it_is_a_document() -> None:
    assert function_of(Submission("t"), appears_late=True) == "enqueue_many"

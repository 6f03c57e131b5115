"""Hints: those for all, those for this worker, those for others, and those that make no sense."""

from __future__ import annotations

import pytest

from faultline.runtime.notifier import Notifier
from faultline.store.database import AsyncDatabase

HINT = '"queue": "mail", "priority": 0, "run_at": "2030-01-01T00:00:00+00:00"'


@pytest.mark.parametrize(
    ("worker_id", "payload", "heard"),
    [
        ("me", f'{{{HINT}, "workers": null}}', ["mail"]),
        ("me", f'{{{HINT}, "workers": ["you", "me"]}}', ["mail"]),
        ("me", f'{{{HINT}, "workers": ["you"]}}', []),
        (None, f'{{{HINT}, "workers": ["you"]}}', ["mail"]),
        ("me", f'{{{HINT}, "workers": 3}}', []),
        ("me", "nonsense", []),
        ("me", "[]", []),
    ],
)
def test_a_worker_heeds_hints_for_all_and_for_itself(worker_id: str | None, payload: str, heard: list[str]) -> None:
    queues: list[str | None] = []
    notifier = Notifier(
        AsyncDatabase(""), worker_id=worker_id, on_work=lambda queue, _: queues.append(queue), on_cancel=lambda _: None
    )

    notifier._heard(payload)  # noqa: SLF001 - a hint, without a connection around it

    assert queues == heard

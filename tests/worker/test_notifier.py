"""Hints: those for all, those for this worker, those for others, and those that make no sense."""

from __future__ import annotations

import pytest

from faultline.store.async_database import AsyncDatabase
from faultline.worker.claim.notifier import Notifier

ID = "0190b2a6-5d0e-7000-8000-000000000001"
HINT = '"queue": "mail", "priority": 0, "run_at": "2030-01-01T00:00:00+00:00"'


@pytest.mark.parametrize(
    ("worker_id", "payload", "heard"),
    [
        ("me", f'{{{HINT}, "workers": null}}', [("mail", 0.0)]),
        ("me", f'{{{HINT}, "workers": ["you", "me"]}}', [("mail", 0.0)]),
        ("me", f'{{{HINT}, "workers": ["you"]}}', [("mail", None)]),
        (None, f'{{{HINT}, "workers": ["you"]}}', [("mail", None)]),
        ("me", f'{{{HINT}, "workers": ["me", "you"], "ids": ["{ID}"]}}', [("mail", 0.0)]),
        ("me", f'{{{HINT}, "workers": ["you", "me"], "ids": ["{ID}"]}}', [("mail", 0.005)]),
        ("me", f'{{{HINT}, "workers": ["you", "she", "me"], "ids": ["{ID}"]}}', [("mail", 0.01)]),
        ("me", f'{{{HINT}, "workers": ["you", "me"], "ids": ["nonsense"]}}', []),
        ("me", f'{{{HINT}, "workers": ["you", "me"], "ids": [3]}}', []),
        ("me", f'{{{HINT}, "workers": ["you", "me"], "ids": 3}}', []),
        ("me", f'{{{HINT}, "workers": 3}}', []),
        ("me", f"{{{HINT}}}", [("mail", 0.0)]),
        ("me", f"{{{HINT}}}".replace("+00:00", ""), []),
        ("me", f"{{{HINT}}}".replace("0,", '"0",'), []),
        ("me", "nonsense", []),
        ("me", "[]", []),
    ],
)
def test_a_worker_is_told_of_every_hint_and_whether_it_is_meant(
    worker_id: str | None, payload: str, heard: list[object]
) -> None:
    told: list[object] = []
    notifier = Notifier(
        AsyncDatabase(""),
        worker_id=worker_id,
        on_work=lambda hint: told.append((hint.queue, hint.wake_after)),
        on_cancel=lambda _: None,
    )

    notifier._heard(payload)  # noqa: SLF001 - a hint, without a connection around it

    assert told == heard

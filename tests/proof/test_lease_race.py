from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.proof import lease_race

if TYPE_CHECKING:
    import pytest


def test_the_lease_race_ends_as_promised(dsn: str) -> None:
    verdict = lease_race.run(dsn)

    assert verdict.passed, verdict.checks
    seen = [(event["event"], event.get("token") or event.get("reason")) for event in verdict.trace]
    assert seen == [
        ("lease_acquired", 1),
        ("execution_started", 1),
        ("lease_acquired", 2),
        ("execution_started", 2),
        ("stale_write_blocked", "token_mismatch"),
        ("worker_exit", "stale"),
        ("worker_exit", "success"),
    ]


def test_the_lease_race_is_lost_by_a_protocol_that_does_not_fence(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drill itself can fail: without the comparison of tokens and owners it does."""
    from faultline.store import migrate  # noqa: PLC0415

    sound = migrate.definitions()
    weak = sound.text.replace("where j.fencing_token = l.token and j.lease_owner = l.owner", "where true")
    weak = weak.replace("for update of j skip locked", "for update of j")
    assert weak != sound.text
    unfenced = migrate.Migration(0, "definitions", weak)
    monkeypatch.setattr(migrate, "definitions", lambda: unfenced)

    verdict = lease_race.run(dsn)

    assert not verdict.passed

"""What limits cost is measured in all its parts, with small numbers, and each part can be measured alone."""

from __future__ import annotations

import re

import pytest

from bench import report
from faultline.core.errors import ConfigError
from faultline_proof.bench import limits
from faultline_proof.bench.limits.effort import Effort

pytestmark = pytest.mark.long

SMALL = Effort(
    rounds=1, seconds=0.5, groups=100, noops=500, calls=600, hot=2_000, cold_groups=20, held=1_800, open_jobs=500,
    running=50, schedules=10, idle_seconds=0.5, workers=4,
)  # fmt: skip


@pytest.mark.parametrize("part", limits.PARTS)
def test_a_part_is_measured_alone(dsn: str, part: str) -> None:
    told = limits.measure(dsn, effort=SMALL, only=part, tell=lambda _: None).told()

    assert told["part"] == "limits"
    assert told["figures"]
    assert all(one["value"] is not None for one in told["figures"]), told["figures"]


def test_a_limit_is_kept_while_it_is_measured(dsn: str) -> None:
    found = limits.measure(dsn, effort=SMALL, only="queue", tell=lambda _: None)

    (most,) = [figure for figure in found.figures if figure.name == "most that ran at once"]
    assert 1 <= most.value <= 10


def test_a_part_that_fails_leaves_the_others(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: str, __: Effort) -> None:
        """It fails."""
        raise RuntimeError("no disk")

    monkeypatch.setitem(limits.PARTS, "queue", fails)
    monkeypatch.setattr(limits, "PARTS", {name: limits.PARTS[name] for name in ("queue", "maintain_limits")})

    figures = limits.measure(dsn, effort=SMALL, tell=lambda _: None).figures

    assert figures[0].good is False
    assert "no disk" in figures[0].name
    assert len(figures) > 1


def test_an_unknown_part_is_refused(dsn: str) -> None:
    with pytest.raises(ConfigError, match="unknown part speed of limits"):
        limits.measure(dsn, only="speed")


def test_no_part_of_the_page_is_empty() -> None:
    parts = re.findall(r"<!-- bench:(\w+) -->\n(.*?)<!-- /bench:\1 -->", report.PAGE.read_text(), re.DOTALL)

    assert len(parts) > 5
    assert [name for name, text in parts if not text.strip()] == []


def test_the_page_has_a_place_for_what_limits_cost() -> None:
    page = report.PAGE.read_text()

    for part in ("limits", "limit_peers"):
        assert f"<!-- bench:{part} -->" in page
        assert f"<!-- /bench:{part} -->" in page

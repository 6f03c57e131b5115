"""Budgets in the metrics."""

from __future__ import annotations

from faultline import Faultline, Rate
from faultline.integrations.prometheus.board import Board
from faultline.integrations.prometheus.exposition import Exposition


def test_metrics_say_what_is_in_budgets_and_how_long_jobs_wait(app: Faultline) -> None:
    app.budget("openai", Rate(10, burst=20))
    app.declare()

    found = Exposition(board=Board(app.database)).render().decode()

    assert 'faultline_budget_tokens{budget="openai"} 20.0' in found
    assert 'faultline_budget_wait_seconds{budget="openai"} 0.0' in found

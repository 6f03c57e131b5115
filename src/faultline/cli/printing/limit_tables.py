"""Limits and groups as tables for the terminal. Imported when one is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from faultline.cli.printing import screen
from faultline.explain.formatting import span
from faultline.explain.limits import said, whose

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.table import Table

    from faultline.core.limits import BudgetRecord, LimitRecord
    from faultline.store.reads.groups import GroupLine, QueueUse


def use_table(uses: Sequence[QueueUse]) -> Table:
    numbers = ("holding", "limit", "tokens", "waiting", "groups", "without group")
    made = screen.table("queue", *numbers, "", right=numbers, last_wraps=True)
    for use in uses:
        more = "+" if use.at_least else ""
        cap = use.limit.get("concurrency")
        made.add_row(
            Text(use.queue, style="bold"),
            Text(f"{use.holding:,}", style="warning" if use.full else "running" if use.holding else "quiet"),
            screen.quiet("-") if cap is None else f"{cap:,}",
            screen.quiet("-") if use.tokens is None else f"{use.tokens:,.1f}",
            f"{use.waiting + use.ungrouped:,}{more}",
            f"{use.groups_waiting:,}{more}",
            Text(f"{use.ungrouped:,}", style="warning" if use.passes_groups else ""),
            Text("paused", style="warning") if use.paused else "",
        )
    return made


def limit_table(limits: Sequence[LimitRecord], now: datetime) -> Table:
    made = screen.table("queue", "of", "in force", "declared", "set", "changed", last_wraps=True)
    for one in limits:
        by = f" by {one.changed_by}" if one.changed_by else ""
        why = f": {screen.one_line(one.reason)}" if one.reason else ""
        made.add_row(
            one.queue,
            Text(whose(one.group), style="bold"),
            said({name: value for name, value in one.effective.items() if value is not None}) or screen.quiet("no limit"),
            Text(f"{said(one.declared)}, in no code", style="warning")
            if one.orphaned
            else said(one.declared) or screen.quiet("-"),
            Text(said(one.override), style="warning") if one.override else screen.quiet("-"),
            screen.quiet(f"{screen.since(one.changed_at, now)}{by}{why}"),
        )
    return made


def budget_table(budgets: Sequence[BudgetRecord], now: datetime) -> Table:
    numbers = ("tokens", "wait")
    made = screen.table("budget", *numbers, "in force", "declared", "set", "changed", right=numbers, last_wraps=True)
    for one in budgets:
        by = f" by {one.changed_by}" if one.changed_by else ""
        why = f": {screen.one_line(one.reason)}" if one.reason else ""
        made.add_row(
            Text(one.name, style="bold"),
            f"{one.tokens:,.1f}",
            Text(span(one.line_seconds), style="warning") if one.line_seconds else screen.quiet("-"),
            said(one.effective),
            Text("in no code", style="warning") if one.orphaned else said(one.declared) or screen.quiet("-"),
            Text(said(one.override), style="warning") if one.override else screen.quiet("-"),
            screen.quiet(f"{screen.since(one.changed_at, now)}{by}{why}"),
        )
    return made


def group_table(lines: Sequence[GroupLine], now: datetime) -> Table:
    numbers = ("holding", "waiting", "oldest", "virtual time")
    made = screen.table("group", *numbers, "", right=numbers, last_wraps=True)
    for line in lines:
        made.add_row(
            Text(line.group, style="bold"),
            Text(f"{line.holding:,}", style="running" if line.holding else "quiet"),
            f"{line.waiting:,}{'+' if line.at_least else ''}",
            screen.quiet("-") if line.oldest_seconds is None else span(max(0.0, line.oldest_seconds)),
            screen.quiet("-") if line.virtual_time is None else f"{line.virtual_time:,.1f}",
            _stands(line, now),
        )
    return made


def _stands(line: GroupLine, now: datetime) -> Text:
    """Why it does not start more."""
    limit = said(line.limit)
    if line.next_permit_at is not None:
        return Text(f"next permit {screen.since(line.next_permit_at, now)} ({limit})", style="warning")
    if line.waiting and not line.ready and limit:
        return Text(f"full: {limit}", style="warning")
    return screen.quiet(limit)

"""The metrics in the format of Prometheus. The only labels that users choose are queues and budgets, a limited number each.

A process remembers the first hundred queues it has seen; all others share the label `other`. A task is never a label.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from faultline.core.errors import FaultlineError
from faultline.core.histogram import BOUNDS
from faultline.core.measures import MEASURES
from faultline.store.reads.schedules import STATES
from faultline.store.reads.suspended import KINDS
from faultline.worker.base.counters import NOTHING, REFUSALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from faultline.core.limits import BudgetRecord
    from faultline.integrations.prometheus.board import Board, Seen
    from faultline.store.reads.groups import QueueUse
    from faultline.store.reads.suspended import FlowTotals
    from faultline.store.reads.tick_history import ScheduleTotals
    from faultline.worker.base.counters import Report

CONTENT_TYPE = CONTENT_TYPE_LATEST
QUEUES_MAX = 100
_BUDGETS_MAX = 100

_BOUNDS = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]


class Exposition(Collector):
    """All metrics of one target: of its processes and, with a board, of the whole database."""

    def __init__(self, report: Callable[[], Report] = lambda: NOTHING, board: Board | None = None) -> None:
        self._report = report
        self._board = board
        self._queues: set[str] = set()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._of_processes(self._report())
        if self._board is not None:
            yield from self._of_board(self._board)

    def _of_board(self, board: Board) -> Iterator[Metric]:
        """If the database does not answer, its metrics are left out and `up` is 0: the rest must still be scraped."""
        up = GaugeMetricFamily("faultline_database_up", "1 if the database answers this target, else 0.")
        try:
            seen = board.read()
        except FaultlineError:
            up.add_metric([], 0)
        else:
            up.add_metric([], 1)
            yield from self._of_database(seen)
        yield up
        checked = board.checked()
        for name, help_text, number in (
            ("broken", "Invariants violated at the last check.", checked.broken),
            ("unchecked", "Invariants that the last check could not check.", checked.unchecked),
            ("age_seconds", "Seconds since all invariants were checked.", checked.age_seconds),
        ):
            yield GaugeMetricFamily(f"faultline_queue_invariants_{name}", help_text, number)

    def _label(self, queue: str) -> str:
        if queue not in self._queues:
            if len(self._queues) >= QUEUES_MAX:
                return "other"
            self._queues.add(queue)
        return queue

    def _summed(self, numbers: Iterable[tuple[str, float]]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for queue, number in numbers:
            label = self._label(queue)
            sums[label] = sums.get(label, 0) + number
        return sums

    def _counter(self, name: str, help_text: str, numbers: Iterable[tuple[str, float]]) -> Metric:
        family = CounterMetricFamily(name, help_text, labels=["queue"])
        for queue, number in self._summed(numbers).items():
            family.add_metric([queue], number)
        return family

    def _of_processes(self, report: Report) -> Iterator[Metric]:
        queues = report["queues"]
        yield self._counter("faultline_jobs_enqueued", "New jobs enqueued.", report["enqueued"].items())
        for measure in MEASURES:
            numbers = [(queue, counts[measure.name]) for queue, counts in queues.items()]
            if measure.of_process == "queue":
                yield self._counter(f"faultline_{measure.metric}", measure.help, numbers)
            elif measure.of_process == "sum":
                yield CounterMetricFamily(f"faultline_{measure.metric}", measure.help, sum(n for _, n in numbers))
        for name, help_text, counts, total in (
            ("wait", "Seconds from a job being due to its claim.", "waits", "wait_seconds_sum"),
            ("run", "Seconds that attempts ran.", "runs", "run_seconds_sum"),
        ):
            yield self._histogram(f"faultline_job_{name}_seconds", help_text, queues, counts, total)
        for name, help_text, number in (
            ("leases_acquired", "Leases acquired by claims.", sum(counts["acquired"] for counts in queues.values())),
            ("leases_renewed", "Leases renewed.", report["renewed"]),
            ("database_errors", "Database calls failed.", report["database_errors"]),
            ("database_reconnects", "Database connections lost and reopened.", report["reconnects"]),
        ):
            yield CounterMetricFamily(f"faultline_{name}", help_text, number)
        reaped = CounterMetricFamily("faultline_leases_reaped", "Leases reaped, by reason.", labels=["reason"])
        for reason in ("lease_expired", "worker_lost"):
            reaped.add_metric([reason], report["reaped"].get(reason, 0))
        yield reaped
        blocked = CounterMetricFamily(
            "faultline_stale_writes_blocked", "Stale writes refused by the database.", labels=["verb", "reason"]
        )
        # Each exists from 0 on: Prometheus sees no increase in a counter that begins above 0.
        refusals = dict.fromkeys(REFUSALS, 0) | {(verb, reason): times for verb, reason, times in report["refusals"]}
        for (verb, reason), times in refusals.items():
            blocked.add_metric([verb, reason], times)
        yield blocked
        yield GaugeMetricFamily("faultline_leases_held", "Leases held now.", report["leases"])
        yield GaugeMetricFamily("faultline_worker_processes", "Worker processes in this target.", report["processes"])

    def _histogram(
        self, name: str, help_text: str, queues: Mapping[str, Mapping[str, Any]], counts: str, total: str
    ) -> Metric:
        family = HistogramMetricFamily(name, help_text, labels=["queue"])
        buckets: dict[str, list[int]] = {}
        for queue, found in queues.items():
            label = self._label(queue)
            buckets[label] = [a + b for a, b in zip(buckets.get(label, [0] * len(_BOUNDS)), found[counts], strict=True)]
        sums = self._summed((queue, found[total]) for queue, found in queues.items())
        for label, numbers in buckets.items():
            up_to = list(zip(_BOUNDS, accumulate(numbers), strict=True))
            family.add_metric([label], buckets=up_to, sum_value=sums[label])
        return family

    def _depths(self, seen: Seen) -> Iterator[Metric]:
        counted = [line for line in seen.queues if line.sampled_at is not None]
        depth = GaugeMetricFamily(
            "faultline_queue_depth", "Jobs of a queue by state, as last counted.", labels=["queue", "state"]
        )
        for state in ("due", "delayed", "running", "failed"):
            for queue, number in self._summed((line.name, getattr(line, state)) for line in counted).items():
                depth.add_metric([queue, state], number)
        yield depth
        estimated = GaugeMetricFamily(
            "faultline_queue_depth_estimated", "1 if the depth is an estimate.", labels=["queue", "state"]
        )
        for state in ("due", "delayed", "running", "failed"):
            found = self._summed((line.name, float(state in line.estimated)) for line in counted)
            for queue, number in found.items():
                estimated.add_metric([queue, state], min(1.0, number))
        yield estimated
        age = float("inf") if seen.counted_seconds_ago is None else seen.counted_seconds_ago
        yield GaugeMetricFamily(
            "faultline_queue_depth_age_seconds", "Seconds since jobs were last counted; +Inf: never.", age
        )
        oldest = GaugeMetricFamily(
            "faultline_queue_oldest_waiting_seconds", "Seconds that the oldest due job has been waiting.", labels=["queue"]
        )
        waits: dict[str, float] = {}
        for line in counted:
            label = self._label(line.name)
            waits[label] = max(waits.get(label, 0.0), line.oldest_due_seconds or 0.0)
        for queue, seconds in waits.items():
            oldest.add_metric([queue], seconds)
        yield oldest

    def _of_flows(self, flows: FlowTotals) -> Iterator[Metric]:
        """The same on every target, like all that is of the whole database."""
        family = GaugeMetricFamily(
            "faultline_queue_waiting", "Calls that suspended jobs wait for, by kind.", labels=["kind"]
        )
        for kind in sorted({*KINDS, *flows.waiting}):
            family.add_metric([kind], flows.waiting.get(kind, 0))
        yield family
        yield GaugeMetricFamily(
            "faultline_queue_oldest_nudge_seconds",
            "Seconds since the oldest note that a waiting job should be looked at; workers look within about a second.",
            flows.oldest_nudge_seconds,
        )
        yield GaugeMetricFamily(
            "faultline_queue_sweeps_left", "Ended jobs whose open children are not all cancelled yet.", flows.sweeps_left
        )

    def _of_schedules(self, schedules: ScheduleTotals) -> Iterator[Metric]:
        """Never by name: there may be one for each user."""
        family = GaugeMetricFamily("faultline_queue_schedules", "Schedules by state.", labels=["state"])
        for state in sorted({*STATES, *schedules.states}):
            family.add_metric([state], schedules.states.get(state, 0))
        yield family
        yield GaugeMetricFamily(
            "faultline_queue_oldest_overdue_tick_seconds",
            "Seconds that the oldest tick has been due that no worker has decided about; workers look once a second.",
            schedules.oldest_overdue_seconds,
        )
        yield GaugeMetricFamily(
            "faultline_queue_schedule_failures",
            "Decisions about ticks that failed in a row, of all failing schedules.",
            schedules.failures,
        )

    def _of_limits(self, uses: Sequence[QueueUse]) -> Iterator[Metric]:
        """Of queues with limits. Never by group: there may be a million of them."""
        numbers: dict[tuple[str, str], list[tuple[str, float]]] = {
            ("permits_held", "Permits that running jobs of a queue with limits hold."): [
                (use.queue, use.holding) for use in uses
            ],
            ("permits_limit", "Jobs of a queue that may run at once, where that is limited."): [
                (use.queue, float(cap)) for use in uses if isinstance(cap := use.limit.get("concurrency"), int | float)
            ],
            ("rate_tokens", "Jobs of a queue that may start now by its rate, where it has one."): [
                (use.queue, use.tokens) for use in uses if use.tokens is not None
            ],
            ("groups_jobs_waiting", "Jobs that wait in groups; counted up to 10,000."): [
                (use.queue, use.waiting) for use in uses
            ],
            ("groups_waiting", "Groups in which jobs wait; counted up to 1,000."): [
                (use.queue, use.groups_waiting) for use in uses
            ],
            (
                "group_events_applied_age_seconds",
                "Seconds since all events of groups were applied; workers do it every minute.",
            ): [(use.queue, use.events_applied_seconds_ago) for use in uses if use.events_applied_seconds_ago is not None],
        }
        for (name, help_text), found in numbers.items():
            gauge = GaugeMetricFamily(f"faultline_queue_{name}", help_text, labels=["queue"])
            for queue, number in self._summed(found).items():
                gauge.add_metric([queue], number)
            yield gauge

    def _of_budgets(self, budgets: Sequence[BudgetRecord]) -> Iterator[Metric]:
        some = f"The first {_BUDGETS_MAX} budgets by name."
        tokens = GaugeMetricFamily(
            "faultline_budget_tokens", f"What jobs may take from a budget now. {some}", labels=["budget"]
        )
        line = GaugeMetricFamily(
            "faultline_budget_wait_seconds",
            f"Seconds that a job that asks now waits behind others. {some}",
            labels=["budget"],
        )
        for one in budgets[:_BUDGETS_MAX]:
            tokens.add_metric([one.name], one.tokens)
            line.add_metric([one.name], one.line_seconds)
        yield from (tokens, line)

    def _of_database(self, seen: Seen) -> Iterator[Metric]:
        yield from self._depths(seen)
        if seen.flows is not None:
            yield from self._of_flows(seen.flows)
        if seen.schedules is not None:
            yield from self._of_schedules(seen.schedules)
        if seen.limits is not None:
            yield from self._of_limits(seen.limits)
        yield from self._of_budgets(seen.budgets)
        for name, help_text, numbers in (
            (
                "backlog_growth_per_second",
                "Growth of due jobs per second over 10 minutes (negative: draining).",
                [(line.name, line.growth_per_second) for line in seen.queues if line.growth_per_second is not None],
            ),
            (
                "paused",
                "1 if the queue is paused.",
                [(line.name, float(line.paused_at is not None)) for line in seen.queues],
            ),
        ):
            gauge = GaugeMetricFamily(f"faultline_queue_{name}", help_text, labels=["queue"])
            for queue, number in self._summed(numbers).items():
                gauge.add_metric([queue], number)
            yield gauge
        for measure in MEASURES:
            if measure.of_database:
                numbers = [(total.queue, getattr(total, measure.name)) for total in seen.totals]
                yield self._counter(f"faultline_queue_{measure.metric}", f"{measure.help} All workers.", numbers)
        yield GaugeMetricFamily(
            "faultline_queue_workers_alive", "Workers with a heartbeat in the last 3 seconds.", seen.workers_alive
        )
        yield GaugeMetricFamily(
            "faultline_queue_workers_silent",
            "Workers with an open session but no heartbeat for 30 seconds.",
            seen.workers_silent,
        )

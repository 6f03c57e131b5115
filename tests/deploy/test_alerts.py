"""Alerts fire when they must, and only then: by the rules alone, and with a real Prometheus beside a real API."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
import yaml  # type: ignore[import-untyped]
from psycopg.conninfo import make_conninfo

from faultline.integrations.prometheus import Board, Exposition, serve
from faultline.store import verbs
from faultline.store.database import Database
from tests.cli.commands import FAULTLINE, environment
from tests.deploy.test_deploy import ROOT
from tests.waiting import free_port
from tests.web.conftest import away

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.driver import Driver

RULES = ROOT / "deploy/prometheus/alerts.yml"
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMTOOL is None or PROMETHEUS is None, reason="prometheus is not installed (apt-get install prometheus)"
)
PATIENCE_SECONDS = 60.0

UP = {
    'up{job="faultline-api", instance="api"}': "1x120",
    'up{job="faultline-workers", instance="w"}': "1x120",
    "faultline_jobs_failed_total": "0x120",
}
#: What an API server tells while all is well.
WELL = UP | {
    'faultline_database_up{instance="api"}': "1x120",
    "faultline_queue_workers_alive": "2x120",
    "faultline_queue_workers_silent": "0x120",
    "faultline_queue_invariants_broken": "0x120",
    "faultline_queue_invariants_unchecked": "0x120",
    "faultline_queue_invariants_age_seconds": "0+15x120",
    "faultline_queue_depth_age_seconds": "4x120",
    'faultline_queue_oldest_waiting_seconds{queue="mail"}': "1x120",
    'faultline_queue_paused{queue="mail"}': "0x120",
    'faultline_queue_waiting{kind="signal"}': "5x120",
    "faultline_queue_oldest_nudge_seconds": "0.2x120",
    "faultline_queue_sweeps_left": "0x120",
    'faultline_queue_schedules{state="active"}': "3x120",
    'faultline_queue_schedules{state="failing"}': "0x120",
    'faultline_queue_schedules{state="orphaned"}': "0x120",
    "faultline_queue_oldest_overdue_tick_seconds": "0.5x120",
    'faultline_programs_changed_total{queue="mail"}': "0x120",
}
#: And while the database is down: what it does not know is left out.
DOWN = UP | {
    'faultline_database_up{instance="api"}': "0x120",
    "faultline_queue_invariants_broken": "0x120",
    "faultline_queue_invariants_unchecked": "8x120",
    "faultline_queue_invariants_age_seconds": "0+15x120",
}
STORIES: dict[str, tuple[dict[str, str], set[str]]] = {
    "all is well": (WELL, set()),
    "the database is down": (
        DOWN,
        {"FaultlineDatabaseDown", "FaultlineNoWorkersAlive", "FaultlineInvariantsUnchecked"},
    ),
    "the API is down": (
        {'up{job="faultline-api", instance="api"}': "0x120"},
        {"FaultlineNothingKnown", "FaultlineNoWorkersAlive", "FaultlineInvariantsUnchecked"},
    ),
    "nothing is scraped": (
        {"other": "1x120"},
        {"FaultlineNothingKnown", "FaultlineNoWorkersAlive", "FaultlineInvariantsUnchecked"},
    ),
    "no worker is alive": (WELL | {"faultline_queue_workers_alive": "0x120"}, {"FaultlineNoWorkersAlive"}),
    "a worker hangs": (WELL | {"faultline_queue_workers_silent": "1x120"}, {"FaultlineWorkerHung"}),
    "a queue is stuck": (
        WELL | {'faultline_queue_oldest_waiting_seconds{queue="mail"}': "400+15x120"},
        {"FaultlineOldestWaitingTooOld"},
    ),
    "a queue has used all its permits for long, and jobs wait": (
        WELL
        | {
            'faultline_queue_permits_held{queue="mail"}': "5x120",
            'faultline_queue_permits_limit{queue="mail"}': "5x120",
            'faultline_queue_oldest_waiting_seconds{queue="mail"}': "400+15x120",
        },
        {"FaultlineLimitReachedForLong", "FaultlineOldestWaitingTooOld"},
    ),
    "a queue has used all its permits, and nothing waits for long": (
        WELL
        | {
            'faultline_queue_permits_held{queue="mail"}': "5x120",
            'faultline_queue_permits_limit{queue="mail"}': "5x120",
        },
        set(),
    ),
    "a queue is held up by its rate": (
        WELL
        | {
            'faultline_queue_rate_tokens{queue="mail"}': "0.3 1.2 0.1 0.7x120",
            'faultline_queue_oldest_waiting_seconds{queue="mail"}': "400+15x120",
        },
        {"FaultlineRateReachedForLong", "FaultlineOldestWaitingTooOld"},
    ),
    "a queue is held up by its groups": (
        WELL
        | {
            'faultline_queue_groups_waiting{queue="mail"}': "3x120",
            'faultline_queue_permits_held{queue="mail"}': "2x120",
            'faultline_queue_permits_limit{queue="mail"}': "5x120",
            'faultline_queue_oldest_waiting_seconds{queue="mail"}': "400+15x120",
        },
        {"FaultlineGroupsWaitForLong", "FaultlineOldestWaitingTooOld"},
    ),
    "nobody hears what happens to groups": (
        WELL | {'faultline_queue_group_events_applied_age_seconds{queue="mail"}': "400+15x120"},
        {"FaultlineGroupEventsNotApplied"},
    ),
    "a stuck queue is paused": (
        WELL
        | {
            'faultline_queue_oldest_waiting_seconds{queue="mail"}': "400+15x120",
            'faultline_queue_paused{queue="mail"}': "1x120",
        },
        set(),
    ),
    "an invariant is broken": (WELL | {"faultline_queue_invariants_broken": "1x120"}, {"FaultlineInvariantsBroken"}),
    "an invariant cannot be checked": (
        WELL | {"faultline_queue_invariants_unchecked": "1x120"},
        {"FaultlineInvariantsUnchecked"},
    ),
    "invariants were not checked for long": (
        WELL | {"faultline_queue_invariants_age_seconds": "4000+15x120"},
        {"FaultlineInvariantsUnchecked"},
    ),
    "jobs fail": (WELL | {'faultline_jobs_failed_total{queue="mail"}': "0x80 3x40"}, {"FaultlineJobsFailed"}),
    "jobs failed before a worker was first scraped": (
        WELL | {'faultline_jobs_failed_total{queue="mail"}': "_x80 3x40"},
        {"FaultlineJobsFailed"},
    ),
    "jobs failed long ago": (WELL | {'faultline_jobs_failed_total{queue="mail"}': "3x120"}, set()),
    "jobs fail in a worker that nobody scrapes": (
        WELL | {'faultline_queue_jobs_failed_total{queue="mail", instance="api"}': "0x80 5x40"},
        {"FaultlineJobsFailed"},
    ),
    "the first job of a queue fails in a worker that nobody scrapes": (
        WELL | {'faultline_queue_jobs_failed_total{queue="mail", instance="api"}': "_x80 1x40"},
        {"FaultlineJobsFailed"},
    ),
    "jobs failed before another API server was first scraped": (
        WELL
        | {
            'faultline_database_up{instance="new"}': "_x80 1x40",
            'faultline_queue_jobs_failed_total{queue="mail", instance="api"}': "500x120",
            'faultline_queue_jobs_failed_total{queue="mail", instance="new"}': "_x80 500x40",
        },
        set(),
    ),
    "stale writes come in a burst": (
        WELL | {'faultline_stale_writes_blocked_total{verb="complete"}': "0x80 20x40"},
        {"FaultlineStaleWritesRising"},
    ),
    "the first leases expire": (
        WELL | {'faultline_leases_reaped_total{reason="worker_lost"}': "_x80 9x40"},
        {"FaultlineLeasesExpiring"},
    ),
    "the first stale writes come": (
        WELL | {'faultline_stale_writes_blocked_total{verb="complete"}': "_x80 20x40"},
        {"FaultlineStaleWritesRising"},
    ),
    "depths were never counted": (
        WELL | {"faultline_queue_depth_age_seconds": " ".join(["Inf"] * 121)},
        {"FaultlineDepthsOld"},
    ),
    "a waiting job is not looked at": (
        WELL | {"faultline_queue_oldest_nudge_seconds": "40+15x120"},
        {"FaultlineWakeUpsLate"},
    ),
    "a deployment does not fit its jobs": (
        WELL | {'faultline_programs_changed_total{queue="mail"}': "0x80 3x40"},
        {"FaultlineProgramsChanged"},
    ),
    "children of cancelled jobs stay open": (WELL | {"faultline_queue_sweeps_left": "2x120"}, {"FaultlineSweepsLeft"}),
    "nobody decides about ticks": (
        WELL | {"faultline_queue_oldest_overdue_tick_seconds": "0x80 30+15x40"},
        {"FaultlineTicksOverdue"},
    ),
    "a schedule cannot enqueue its job": (
        WELL | {'faultline_queue_schedules{state="failing"}': "1x120"},
        {"FaultlineSchedulesFailing"},
    ),
    "a schedule is gone from the code": (
        WELL | {'faultline_queue_schedules{state="orphaned"}': "1x120"},
        {"FaultlineSchedulesOrphaned"},
    ),
    "depths are old": (WELL | {"faultline_queue_depth_age_seconds": "90+15x120"}, {"FaultlineDepthsOld"}),
}


@needs_prometheus
def test_each_alert_fires_when_it_must_and_no_other_does(tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    tests = [
        {
            "name": story,
            "interval": "15s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": "group by (alertname) (ALERTS{alertstate='firing'})",
                    "eval_time": "29m",
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fired)],
                }
            ],
        }
        for story, (series, fired) in STORIES.items()
    ]
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": tests}))

    ran = subprocess.run([str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = {rule["alert"] for rule in rules}
    assert set.union(*(fired for _, fired in STORIES.values())) <= told


def test_numbers_are_told_as_people_read_them() -> None:
    """An increase is extrapolated: 5.575277 jobs have failed."""
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        plain = re.search(r"\{\{ \$value \}\}", rule["annotations"]["summary"])
        if plain and ("increase(" in rule["expr"] or "rate(" in rule["expr"]):
            assert rule["expr"].startswith("round("), rule["alert"]


class Prometheus:
    """A real one, with our rules, that asks often and does not wait before it fires."""

    def __init__(self, folder: Path, target: int) -> None:
        self._port = free_port()
        rules = re.sub(r"for: \w+", "for: 1s", RULES.read_text())
        (folder / "alerts.yml").write_text(rules)
        jobs = [{"job_name": "faultline-api", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def firing(self) -> set[str]:
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/api/v1/alerts", timeout=5) as answer:
                alerts: list[dict[str, Any]] = json.load(answer)["data"]["alerts"]
        except OSError:
            return {"(Prometheus does not answer yet)"}
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def until_firing(self, wanted: set[str]) -> None:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while (fired := self.firing()) != wanted and time.monotonic() < give_up:
            time.sleep(0.2)
        assert fired == wanted

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture
def watched(dsn: str, tmp_path: Path) -> Iterator[tuple[Prometheus, Board]]:
    """A board as the API has it, at a port, and Prometheus that scrapes it."""
    database = Database(make_conninfo(dsn, options="-c role=faultline_viewer"), timeout=5)
    board, port = Board(database), free_port()
    with serve(Exposition(board=board), "127.0.0.1", port):
        prometheus = Prometheus(tmp_path, port)
        try:
            yield prometheus, board
        finally:
            prometheus.close()
            database.close()


@pytest.mark.long
@needs_prometheus
def test_a_real_prometheus_sees_each_trouble(watched: tuple[Prometheus, Board], queue: Driver) -> None:
    prometheus, board = watched
    board.tick()
    prometheus.until_firing({"FaultlineNoWorkersAlive"})

    beat = verbs.heartbeat("w", host="h", pid=1, version="0", queues=["mail"], sleeping=[], watched=False)
    queue.run(beat)
    queue.connection.execute(
        "update faultline.workers set heartbeat_at = heartbeat_at + interval '1 hour'"
    )  # alive for all of this
    prometheus.until_firing(set())

    queue.run(verbs.heartbeat("frozen", host="h", pid=2, version="0", queues=["mail"], sleeping=[], watched=True))
    queue.lock_as("frozen")
    queue.connection.execute(
        "update faultline.workers set heartbeat_at = heartbeat_at - interval '1 hour' where id = 'frozen'"
    )
    prometheus.until_firing({"FaultlineWorkerHung"})
    queue.connection.execute("delete from faultline.workers where id = 'frozen'")

    job_id = queue.enqueue(queue="mail")
    queue.connection.execute("set session_replication_role = replica")  # past the guards
    for column in (b"created_at", b"next_run_at"):
        queue.connection.execute(b"update faultline.open_jobs set %b = %b - interval '1 hour'" % (column, column))
    queue.connection.execute("reset session_replication_role")
    queue.sample()
    prometheus.until_firing({"FaultlineOldestWaitingTooOld"})
    queue.run(verbs.cancel(job_id))
    queue.sample()
    prometheus.until_firing(set())

    with queue.connection.transaction():
        queue.connection.execute("set local session_replication_role = replica")
        queue.connection.execute("insert into faultline.steps values (gen_random_uuid(), 's', 1, now())")
    board.check()
    prometheus.until_firing({"FaultlineInvariantsBroken"})

    queue.connection.execute("revoke select on faultline.ledger from faultline_viewer")
    board.check()
    prometheus.until_firing({"FaultlineInvariantsBroken", "FaultlineInvariantsUnchecked"})


@pytest.fixture
def served(dsn: str) -> Iterator[int]:
    """The port where `faultline serve` tells its metrics: a process of its own, as it is run in earnest."""
    port = free_port()
    words = ["serve", "--port", str(free_port()), "--metrics-port", str(port), "--dsn", dsn]
    process = subprocess.Popen([FAULTLINE, *words], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(60)


@needs_prometheus
def test_a_database_that_goes_down_behind_a_running_api_is_seen_at_once(dsn: str, served: int, tmp_path: Path) -> None:
    prometheus = Prometheus(tmp_path, served)
    try:
        prometheus.until_firing({"FaultlineNoWorkersAlive"})
        with away(dsn):
            prometheus.until_firing({"FaultlineDatabaseDown", "FaultlineNoWorkersAlive"})
        prometheus.until_firing({"FaultlineNoWorkersAlive"})
    finally:
        prometheus.close()

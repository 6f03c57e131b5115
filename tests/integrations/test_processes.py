"""A real run under a supervisor, scraped: its numbers are the ledger's, and the dashboard and alerts name nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from faultline import Faultline
from faultline.core.model import Submission
from faultline.integrations.prometheus import Board, Exposition
from faultline.store.reads import overview
from faultline.store.verbs import limit
from faultline.worker.base.counters import Tally
from tests.integrations.test_exposition import Samples, number, samples
from tests.waiting import free_port, until
from tests.worker.test_processes import children_of, worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver

DEPLOY = Path(__file__).parents[2] / "deploy"
#: While processes come up, nobody answers yet, or not with every figure.
SOON = (URLError, KeyError)


def scrape(port: int) -> Samples:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return samples(answer.read())


def named(text: str) -> set[str]:
    return {re.sub(r"_bucket$", "", name) for name in re.findall(r"\bfaultline_[a-z_]+", text)}


@pytest.mark.long
def test_scraped_numbers_are_the_ledgers_also_after_a_kill(dsn: str, queue: Driver) -> None:
    jobs, port = 40, free_port()
    for n in range(jobs):
        queue.enqueue("note", {"n": n})
    with worker(dsn, "--processes", "2", "--metrics-port", str(port)) as process:

        def done(times: int) -> Callable[[], bool]:
            return lambda: number(scrape(port), "faultline_jobs_succeeded_total", queue="default") == times

        until(done(jobs), despite=SOON)
        held = queue.enqueue("survive")
        until(lambda: number(scrape(port), "faultline_jobs_started_total", queue="default") == jobs + 1, despite=SOON)
        pid = queue.value(
            "select w.pid from faultline.workers w join faultline.open_jobs j on w.id = split_part(j.lease_owner, '/', 1)"
        )
        os.kill(pid, signal.SIGKILL)
        until(done(jobs + 1), despite=SOON)
        # Told by the one that took the job back, which need not be the one that finished it.
        until(lambda: number(scrape(port), "faultline_jobs_requeued_total") == 1, despite=SOON)
        until(lambda: len(children_of(process.pid)) == 2, despite=SOON)
        until(lambda: number(scrape(port), "faultline_worker_processes") == 2, despite=SOON)
        found = scrape(port)
        until(lambda: queue.run(overview.totals())[0].succeeded == jobs + 1)

    ledger = queue.value("select count(*) from faultline.ledger")
    assert ledger == number(found, "faultline_jobs_succeeded_total", queue="default") == jobs + 1
    assert number(found, "faultline_jobs_started_total", queue="default") == jobs + 2
    assert number(found, "faultline_job_run_seconds_count", queue="default") == jobs + 1
    assert number(found, "faultline_job_wait_seconds_count", queue="default") == jobs + 2
    assert number(found, "faultline_leases_acquired_total") == jobs + 2
    assert sum(value for (name, _), value in found.items() if name == "faultline_leases_reaped_total") == 1
    assert number(found, "faultline_leases_held") == 0
    assert queue.job(held).fencing_token == 2
    _every_name_exists(queue, dsn, found)


def _every_name_exists(queue: Driver, dsn: str, of_workers: Samples) -> None:
    # Growth is known from two minutes on, and refused writes have a series once there was one.
    queue.connection.execute(
        "insert into faultline.samples (queue, minute, sampled_at, due, delayed, running, failed)"
        " select 'default', at, at, 1, 0, 0, 0 from (select faultline.now() - interval '2 minutes') as x (at)"
    )
    tally = Tally(time.monotonic)
    tally.of("default").refuse("complete", "lease_lost")
    with Faultline(dsn) as app:
        app.enqueued["default"] += 1
        board = Board(app.database)
        app.database.run(limit.declare_queue("limited", {"queue": {"concurrency": 1, "rate": 1, "per": 1, "burst": 1}}))
        app.enqueue_many([Submission("t", queue="limited", group="g")])
        app.database.run(limit.maintain_limits(["limited"]))
        board.tick()
        report = tally.report(enqueued=app.enqueued, reconnects=0, leases=0)
        of_server = samples(Exposition(lambda: report, board).render())
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name, _ in (*of_workers, *of_server)}
    wanted = named(re.sub(r"#.*", "", (DEPLOY / "prometheus/alerts.yml").read_text()))
    dashboard = json.loads((DEPLOY / "grafana/faultline.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            wanted |= named(target["expr"])

    assert len(wanted) > 15
    assert wanted - families == set()

"""Scraped numbers are true: of one process, of several, and of the whole database."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import make_conninfo

import faultline
from faultline import operate
from faultline.core.errors import ConfigError
from faultline.core.model import Reason
from faultline.integrations.prometheus import Board, Exposition
from faultline.integrations.prometheus.exposition import QUEUES_MAX
from faultline.integrations.prometheus.serving import Reports, report_to, serve
from faultline.store import verbs
from faultline.store.database import Database
from faultline.store.reads.schedules import STATES
from faultline.worker.base.counters import NOTHING, REFUSALS, Report, Tally
from faultline.worker.write import completer
from tests.waiting import free_port, until
from tests.web.conftest import away
from tests.web.schedule_scenes import made

if TYPE_CHECKING:
    from faultline.app.application import Faultline
    from tests.driver import Clock, Driver

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: bytes) -> Samples:
    families = text_string_to_metric_families(text.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def number(found: Samples, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def report_of(**started: int) -> Report:
    tally = Tally(lambda: 0.0)
    for queue, times in started.items():
        tally.of(queue).started += times
        tally.of(queue).ran += [0.002] * times
    return tally.report(enqueued={}, reconnects=0, leases=1)


def test_faultline_needs_no_prometheus_client() -> None:
    program = "import sys, faultline, faultline.worker.worker; sys.exit('prometheus_client' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_histograms_are_cumulative_and_have_a_sum() -> None:
    found = samples(Exposition(lambda: report_of(mail=3)).render())

    assert number(found, "faultline_job_run_seconds_bucket", queue="mail", le="0.001") == 0
    assert number(found, "faultline_job_run_seconds_bucket", queue="mail", le="0.0025") == 3
    assert number(found, "faultline_job_run_seconds_bucket", queue="mail", le="+Inf") == 3
    assert number(found, "faultline_job_run_seconds_count", queue="mail") == 3
    assert number(found, "faultline_job_run_seconds_sum", queue="mail") == pytest.approx(0.006)


def test_every_refusal_is_told_before_its_first_time() -> None:
    """An alert sees an increase only over what was there before; and a burst is how refusals come."""
    tally = Tally(lambda: 0.0)
    tally.of("mail").refuse("complete", "token_mismatch")
    found = samples(Exposition(lambda: tally.report(enqueued={}, reconnects=0, leases=0)).render())

    told = {
        (dict(labels)["verb"], dict(labels)["reason"]): value
        for (name, labels), value in found.items()
        if name == "faultline_stale_writes_blocked_total"
    }
    assert {refusal for refusal, value in told.items() if value} == {("complete", "token_mismatch")}
    assert set(told) == set(REFUSALS)


def test_the_refusals_that_are_known_are_all_there_are() -> None:
    package = Path(faultline.__file__).parent
    source = "".join(
        path.read_text() for folder in ("app", "attempt", "flow", "worker") for path in (package / folder).rglob("*.py")
    )
    verbs_refused = {
        *re.findall(r'(?:refuse|_refuse_if_stale|_lost)\(\s*"(\w+)"', source),
        *completer._VERBS.values(),  # noqa: SLF001
    }

    assert {verb for verb, _ in REFUSALS} == verbs_refused
    assert {reason for _, reason in REFUSALS} == set(Reason) - {Reason.BUSY}


def test_many_queues_share_a_label_and_none_is_lost() -> None:
    many = {f"q{n}": 1 for n in range(QUEUES_MAX + 20)}
    exposition = Exposition(lambda: report_of(**many))

    for _ in range(2):
        found = samples(exposition.render())
        started = {labels: value for (name, labels), value in found.items() if name == "faultline_jobs_started_total"}
        assert len(started) == QUEUES_MAX + 1
        assert started[("queue", "other"),] == 20


def test_a_dead_childs_counters_stay_and_its_gauges_go(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    alive = {1, 2}
    reports.alive = lambda: alive
    for pid in (1, 2):
        with report_to(tmp_path, lambda: report_of(mail=5)):
            pass
        (written,) = [path for path in tmp_path.glob("*.json") if not path.name.startswith(("1-", "2-"))]
        written.rename(tmp_path / f"{pid}-x.json")
    both = reports.summed()

    alive.remove(1)
    one = reports.summed()
    alive.clear()
    none = reports.summed()

    assert [(r["queues"]["mail"]["started"], r["leases"], r["processes"]) for r in (both, one, none)] == [
        (10, 2, 2), (10, 1, 1), (10, 0, 0),
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_told_as_such() -> None:
    port = free_port()
    with serve(Exposition(lambda: report_of(mail=1)), "127.0.0.1", port):
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert number(samples(answer.read()), "faultline_jobs_started_total", queue="mail") == 1
        with pytest.raises(ConfigError, match="--metrics-port"), serve(Exposition(report_of), "127.0.0.1", port):
            pass


def test_a_server_tells_how_the_whole_database_is_doing(app: Faultline, queue: Driver) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    for _ in range(3):
        send.enqueue()
    queue.claim(1, queue="mail")
    queue.run(verbs.pause("web"))
    queue.run(verbs.heartbeat("w", host="h", pid=1, version="0", queues=["mail"], sleeping=[], watched=False))
    now = {"now": 0.0}
    board = Board(app.database, monotonic=lambda: now["now"])
    exposition = Exposition(lambda: {**NOTHING, "enqueued": dict(app.enqueued)}, board)

    board.tick()
    found = samples(exposition.render())

    assert number(found, "faultline_jobs_enqueued_total", queue="mail") == 3
    assert number(found, "faultline_queue_depth", queue="mail", state="due") == 2
    assert number(found, "faultline_queue_depth", queue="mail", state="running") == 1
    assert number(found, "faultline_queue_paused", queue="web") == 1
    assert number(found, "faultline_queue_oldest_waiting_seconds", queue="mail") > 0
    assert number(found, "faultline_queue_workers_alive") == 1
    assert number(found, "faultline_queue_invariants_broken") == 0


def test_schedules_are_counted_by_state_and_never_named(dsn: str, queue: Driver, clock: Clock) -> None:
    for name in ("digest-1", "digest-2", "digest-3"):
        made(queue, name)
    queue.run(operate.pause_schedule("digest-2"))
    clock.advance(2 * 3600)
    failed = "select faultline.schedule_failed(name, revision, 'no') from faultline.schedules"
    queue.execute(f"{failed} where name = 'digest-3'")
    with closing(Database(dsn)) as database:
        text = Exposition(board=Board(database)).render()

    found = samples(text)
    states = {state: number(found, "faultline_queue_schedules", state=state) for state in STATES}
    assert states == {"active": 0, "overdue": 1, "failing": 1, "orphaned": 0, "paused": 1, "ended": 0}
    assert 3600 < number(found, "faultline_queue_oldest_overdue_tick_seconds") <= 7200
    assert number(found, "faultline_queue_schedule_failures") == 1
    assert b"digest" not in text


def test_depths_are_right_without_workers_in_the_role_of_the_api(dsn: str, queue: Driver) -> None:
    """What an autoscaler goes by to start the first one."""
    queue.enqueue(queue="mail")
    with closing(Database(make_conninfo(dsn, options="-c role=faultline_viewer"))) as database:
        board = Board(database)

        board.tick()

        (line,) = board.read().queues
    assert (line.name, line.due, line.estimated) == ("mail", 1, [])
    assert line.counted_seconds_ago is not None
    assert not line.counts_are_old


def test_depths_that_nobody_counted_are_left_out_and_their_age_says_so(dsn: str, queue: Driver) -> None:
    """A 0 would scale everything down, and keep the alerts quiet."""
    queue.connection.execute("insert into faultline.tallies (queue, minute, worker) values ('mail', now(), 'w')")
    queue.run(verbs.heartbeat("dead", host="h", pid=1, version="0", queues=["mail"], sleeping=[], watched=True))
    queue.connection.execute("update faultline.workers set heartbeat_at = heartbeat_at - interval '1 hour'")
    with closing(Database(make_conninfo(dsn, options="-c role=faultline_viewer"))) as database:
        found = samples(Exposition(board=Board(database)).render())

    names = {name for name, _ in found}
    assert not names & {"faultline_queue_depth", "faultline_queue_depth_estimated", "faultline_queue_oldest_waiting_seconds"}
    assert number(found, "faultline_queue_depth_age_seconds") == float("inf")
    assert number(found, "faultline_queue_jobs_started_total", queue="mail") == 0
    assert number(found, "faultline_queue_workers_silent") == 0, "its session is gone"


def test_the_database_is_asked_at_most_every_few_seconds(app: Faultline, queue: Driver) -> None:
    now = {"now": 0.0}
    board = Board(app.database, monotonic=lambda: now["now"])
    assert board.read().workers_alive == 0
    queue.run(verbs.heartbeat("w", host="h", pid=1, version="0", queues=["q"], sleeping=[], watched=False))

    now["now"] = 2.9
    assert board.read().workers_alive == 0
    now["now"] = 3.1
    assert board.read().workers_alive == 1


def test_a_reader_of_a_tended_board_does_not_wait(app: Faultline, queue: Driver) -> None:
    """While the table is locked, whoever asked the database would wait: a reader gets what was seen last."""
    board = Board(app.database)
    board.start()
    board.read()
    with queue.connection.transaction():
        queue.connection.execute("lock table faultline.workers in access exclusive mode")
        began = time.monotonic()
        board.read()
        took = time.monotonic() - began
    queue.run(verbs.heartbeat("w", host="h", pid=1, version="0", queues=["q"], sleeping=[], watched=False))
    give_up = time.monotonic() + 20
    while not board.read().workers_alive and time.monotonic() < give_up:
        queue.run(verbs.heartbeat("w", host="h", pid=1, version="0", queues=["q"], sleeping=[], watched=False))
        time.sleep(0.05)
    board.close()

    assert took < 5
    assert board.read().workers_alive == 1  # and later what the thread has seen


def test_a_board_is_tended_by_a_thread_that_ends(app: Faultline, queue: Driver) -> None:
    queue.enqueue()
    board = Board(app.database)
    before = set(threading.enumerate())  # those of other tests' boards may still be there
    board.start()
    own = {thread for thread in set(threading.enumerate()) - before if thread.name == "faultline-board"}
    until(lambda: queue.value("select count(*) from faultline.samples"))
    board.close()

    assert queue.value("select count(*) from faultline.samples") == 1
    assert own
    assert not any(thread.is_alive() for thread in own)


def test_a_check_that_cannot_be_made_is_told_and_hides_no_other(app: Faultline, queue: Driver) -> None:
    now = {"now": 0.0}
    with closing(Database(make_conninfo(app.dsn, options="-c role=faultline_viewer"))) as database:
        board = Board(database, monotonic=lambda: now["now"])
        with queue.connection.transaction():
            queue.connection.execute("set local session_replication_role = replica")
            queue.connection.execute("insert into faultline.steps values (gen_random_uuid(), 's', 1, now())")
        board.tick()
        first = board.checked()

        queue.connection.execute("revoke select on faultline.steps from faultline_viewer")
        now["now"] = 700.0
        board.tick()
        second = samples(Exposition(board=board).render())

    assert (first.broken, first.unchecked, first.age_seconds) == (1, 0, 0.0)
    assert number(second, "faultline_queue_invariants_broken") == 1
    assert number(second, "faultline_queue_invariants_unchecked") == 2
    assert number(second, "faultline_queue_invariants_age_seconds") == 700


def test_a_target_whose_database_is_down_is_scraped_and_says_so(tmp_path: Path) -> None:
    with closing(Database(f"host={tmp_path} dbname=nowhere", timeout=5)) as database:
        found = samples(Exposition(lambda: report_of(mail=1), Board(database)).render())

    assert number(found, "faultline_database_up") == 0
    assert number(found, "faultline_jobs_started_total", queue="mail") == 1
    assert not any(name == "faultline_queue_workers_alive" for name, _ in found)


def test_what_was_seen_before_the_database_failed_is_not_told_as_news(dsn: str) -> None:
    now = {"now": 100.0}  # it stands still: nothing grows old by itself
    with closing(Database(dsn, connect_seconds=1)) as database:
        board = Board(database, monotonic=lambda: now["now"])
        board.start()
        try:
            assert told(board) == 1
            with away(dsn):
                until(lambda: told(board) == 0)
            now["now"] += 1
            until(lambda: told(board) == 1)
        finally:
            board.close()


def told(board: Board) -> float:
    return number(samples(Exposition(board=board).render()), "faultline_database_up")


def test_all_who_scrape_in_an_outage_wait_at_once_and_get_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faultline.integrations.prometheus.board._LOOK_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # it takes connections and says nothing
        port = frozen.getsockname()[1]
        with closing(Database(f"host=127.0.0.1 port={port} dbname=x user=x sslmode=disable connect_timeout=30")) as database:
            board = Board(database)
            board.start()
            began = time.monotonic()
            with ThreadPoolExecutor(12) as scrapers:
                found = list(scrapers.map(lambda _: told(board), range(12)))
            took = time.monotonic() - began
            frozen.close()
            board.close()

    assert found == [0] * 12
    assert took < 12  # one behind the other: 24

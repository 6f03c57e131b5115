"""The comparison with peers, without peers: adapters say where their settings are from, and results become a page."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from bench import catalog, report, safety, workloads
from bench.__main__ import plain
from bench.measure import Bench
from bench.processes import Failed, Program, cpu_seconds, wait_for
from bench.stores import Account

if TYPE_CHECKING:
    from bench.catalog import System

pytestmark = pytest.mark.long

ADAPTERS = pytest.mark.parametrize("system", catalog.ALL, ids=lambda system: system.key)


@ADAPTERS
def test_an_adapter_gives_what_the_harness_calls(system: System) -> None:
    text = system.adapter.read_text()

    if not system.node:
        names = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert {"setup", "bulk", "single", "left", "work"} <= names
    else:
        assert all(re.search(rf"^  {name}:", text, re.MULTILINE) for name in ("setup", "bulk", "single", "left", "work"))


@ADAPTERS
def test_every_setting_of_a_system_names_its_source(system: System) -> None:
    assert system.settings
    assert all(one["setting"] and one["source"] for one in system.settings)


@ADAPTERS
def test_every_peer_is_pinned_without_naming_a_registry(system: System) -> None:
    if system.key == "faultline":
        return
    pins = catalog.ENVIRONMENTS / f"{system.key}.{'json' if system.node else 'txt'}"

    if system.node:
        versions = json.loads(pins.read_text())["dependencies"]
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions.values())
    else:
        versions = dict(line.split("==") for line in pins.read_text().split())
    assert system.package in versions
    assert "//" not in pins.read_text()


def test_every_system_has_a_row_about_crashes() -> None:
    told = [row.system.partition(" (")[0] for row in safety.TABLE]

    assert sorted(told) == sorted(system.name for system in catalog.ALL)


def a_result(**changed: Any) -> dict[str, Any]:
    systems = [system for system in catalog.ALL if system.name in ("Faultline", "graphile-worker", "RQ")]
    drain = {"settle_seconds": 0.1, "bulk_rate": 9000.0, "bulk_wal": 400.0, "run_wal": 800.0, "store_cpu": 20.0}
    drain |= {"client_cpu": 30.0, "transactions": 0.01, "cut": False}
    idle = {"p50_ms": 3.0, "p99_ms": 9.0, "single_rate": 500.0}
    found = [
        {"system": "Faultline", "workload": "drain_1", "round": 0, "rate": 20_000.0, **drain},
        {"system": "Faultline", "workload": "drain_1", "round": 1, "rate": 26_000.0, **drain},
        {"system": "Faultline", "workload": "drain_1", "round": 2, "rate": 22_000.0, **drain},
        {"system": "graphile-worker", "workload": "drain_1", "round": 0, "rate": 11_000.0, **drain, "run_wal": 500.0},
        {"system": "RQ", "workload": "drain_1", "round": 0, "error": "a worker ended by itself: no memory"},
        {"system": "Faultline", "workload": "idle", "round": 0, **idle},
        {"system": "graphile-worker", "workload": "idle", "round": 0, **idle, "p99_ms": 6.0},
    ]
    return {
        "part": "peers",
        "quick": False,
        "machine": {"processor": "a chip", "cores": 2, "memory_gb": 4.0, "at": "2026-01-02T03:04:05+00:00"},
        "stores": {"postgresql": {"version": "18.4", "settings": {"fsync": "on"}}},
        "workloads": workloads.WORKLOADS,
        "systems": [
            {"name": s.name, "store": s.store, "version": "1.0", "settings": s.settings, "missing": None} for s in systems
        ],
        "absent": {"River": "written in Go"},
        "measurements": found,
        **changed,
    }


def test_a_result_says_at_which_commit_it_was_measured(tmp_path: Path) -> None:
    machine = {**a_result()["machine"], "commit": "0123456789ab"}

    assert "Measured 2026-01-02 at commit 0123456789ab on a chip" in report.peers(a_result(machine=machine), tmp_path)


def test_a_result_of_more_than_a_hundred_commits_ago_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    result = tmp_path / "peers.json"
    seen: list[str | None] = []
    for commits in (1, 100, 1):
        for _ in range(commits):
            git("commit", "--quiet", "--allow-empty", "--message", "x")
        if not seen:
            machine = {**a_result()["machine"], "commit": git("rev-parse", "--short=12", "HEAD")}
            result.write_text(json.dumps(a_result(machine=machine)))
        seen.append(report.old(result))
    result.write_text(json.dumps(a_result()))

    assert seen[:2] == [None, None]
    assert "101 commits ago; measure again: make bench" in str(seen[2])
    assert report.old(result) is None


def test_a_quick_run_has_a_steady_load_and_single_enqueues() -> None:
    assert {"idle", "steady"} <= set(workloads.QUICK)


def test_a_page_shows_the_median_with_its_spread(tmp_path: Path) -> None:
    page = report.peers(a_result(), tmp_path)

    assert "| Faultline | postgresql | **22,000** (20,000–26,000) |" in page
    assert "two processes" not in page
    assert "| graphile-worker | postgresql | **11,000** | 0.1 | 2.0× |" in page


def test_a_page_says_where_a_peer_is_better(tmp_path: Path) -> None:
    page = report.peers(a_result(), tmp_path)

    better = page.partition("### Where a peer is better")[2].partition("###")[0]
    assert "latency on an idle system, p99, ms: graphile-worker 6; Faultline 9" in better
    assert "WAL of a run, B/job: graphile-worker 500; Faultline 800" in better
    assert "no-op drain" not in better


def test_what_failed_or_is_absent_is_listed_with_its_reason(tmp_path: Path) -> None:
    told = a_result()
    told["systems"][1]["missing"] = "could not be installed: no npm"

    page = report.peers(told, tmp_path)

    gaps = page.partition("### What was not measured")[2]
    assert "- River: written in Go" in gaps
    assert "- graphile-worker: could not be installed: no npm" in gaps
    assert "- RQ, drain_1: a worker ended by itself: no memory" in gaps


def test_pictures_are_well_formed_and_know_dark_pages(tmp_path: Path) -> None:
    report.peers(a_result(), tmp_path)

    drawn = sorted(tmp_path.glob("*.svg"))
    assert [path.name for path in drawn] == ["cpu.svg", "drain.svg", "latency.svg"]
    for path in drawn:
        ET.fromstring(path.read_text())  # noqa: S314 - our own file
        assert "prefers-color-scheme: dark" in path.read_text()


def test_curves_and_tables_of_the_other_parts_become_sections(tmp_path: Path) -> None:
    told = {
        "part": "growth",
        "machine": {"processor": "a chip", "cores": 2, "at": "2026-01-02", "postgres": "18.4"},
        "figures": [{"name": "floor", "value": 12.5, "unit": "µs/job", "goal": "at most 20", "good": True}],
        "tables": [{"name": "parts", "columns": ["part", "µs"], "rows": [["claim", 4.5]]}],
        "curves": [
            {
                "name": "claims by backlog",
                "varies": "waiting jobs",
                "unit": "ms",
                "points": [
                    {"at": 1000, "value": 1.0, "cpu_micros": 3.0},
                    {"at": 1_000_000, "value": 1.5},
                    {"at": 5_000_000, "value": None, "missing": "no room"},
                ],
                "goal": "flat",
                "ok": True,
            }
        ],
    }
    page = tmp_path / "performance.md"
    markers = "".join(f"<!-- bench:{part} -->\n<!-- /bench:{part} -->\n" for part in ("growth", "safety"))
    page.write_text(f"by hand\n{markers}the end\n")
    result = tmp_path / "growth.json"
    result.write_text(json.dumps(told))

    report.write([result], page)
    once = page.read_text()
    report.write([result], page)

    assert page.read_text() == once
    assert once.startswith("by hand\n")
    assert once.endswith("the end\n")
    assert "| floor | 12.5 | µs/job | at most 20 | yes |" in once
    assert "Goal: flat: met. Not measured: 5,000,000: no room." in once
    assert (tmp_path / "performance/growth-1.svg").exists()


def test_what_a_peer_said_is_published_without_addresses_and_folders() -> None:
    said = {"error": "pip: no match at https://index.example/simple/saq/ in /home/me/bench/.peers/saq/bin/python, 2 tries"}

    assert plain({"measurements": [said], "wal": float("nan"), "docs": "bullmq.io/guide/queues/bulks"}) == {
        "measurements": [{"error": "pip: no match at … in …/python, 2 tries"}],
        "wal": None,
        "docs": "bullmq.io/guide/queues/bulks",
    }


def test_the_page_of_the_documentation_has_a_place_for_every_part() -> None:
    page = report.PAGE.read_text()

    for part in ("peers", "limit", "growth", "safety"):
        assert f"<!-- bench:{part} -->" in page
        assert f"<!-- /bench:{part} -->" in page


class OneDatabase:
    """A store for one measurement, in the database of a test."""

    version = ""
    settings: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def fresh(self, *_: object) -> dict[str, str]:
        return {"BENCH_DSN": self._dsn}

    def settle(self) -> None: ...

    def account(self) -> Account:
        return Account(0, 0, 0)

    def drop(self) -> None: ...


def test_a_program_that_ignores_sigterm_is_ended_with_its_children(tmp_path: Path) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "print(child, flush=True) if child else None\n"
        "time.sleep(600)\n"
    )
    log = tmp_path / "log"
    program = Program([sys.executable, "-c", code], os.environ, log)
    wait_for(lambda: log.read_text().strip() != "", 20, "it did not start")
    child = int(log.read_text())

    program.stop()

    assert program.ended
    wait_for(lambda: not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text(), 10, "it lives")


def test_a_driver_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    program = Program([sys.executable, "-c", "raise SystemExit('no such table')"], os.environ, tmp_path / "log", talks=True)

    try:
        with pytest.raises(Failed, match="no such table"):
            program.answer(20, "being started")
    finally:
        program.stop()


def test_cpu_counts_children_that_have_ended() -> None:
    before = cpu_seconds([os.getpid()])
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        sum(range(30_000_000))
        os._exit(0)
    os.waitpid(child, 0)

    assert cpu_seconds([os.getpid()]) - before > 0.05


def test_faultline_runs_in_the_harness(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stamps of real jobs through the real adapter: what the figures rest on."""
    monkeypatch.setattr("bench.measure.PEERS", tmp_path)
    (tmp_path / "log").mkdir()

    with Bench(catalog.ALL[0], OneDatabase(dsn), "drain") as bench:
        rate = bench.bulk("nothing", 300)
        before = bench.left()
        bench.work(1)
        bench.settled(300, 30)
        stamps = bench.stamps()

    assert rate > 0
    assert before == 300
    assert len(stamps) == 300
    assert all(stamp.started > stamp.sent for stamp in stamps)

"""The comparison of flows: every adapter runs every program, with small numbers, and results become a section of a page.

A peer takes part where its environment is: `python -m bench.flows --quick` puts it there.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from bench import catalog, install, report
from bench.flows import measure
from bench.flows.measure import Effort
from bench.flows.report import flow_peers
from bench.flows.workloads import WORKLOADS
from bench.measure import Bench
from bench.processes import run
from bench.stores import Account
from faultline_proof.bench import flows

if TYPE_CHECKING:
    from pathlib import Path

    from bench.catalog import System

pytestmark = pytest.mark.long

ADAPTERS = pytest.mark.parametrize("system", catalog.FLOWS, ids=lambda system: system.key)
#: What a run of a flow that is killed costs here: Absurd's lease is made short.
SMALL = Effort(
    steps=5, step_flows=1, children=20, fans=1, signals=3, killed=2, beside_seconds=1, patience=60, claim_seconds=3
)


class OneDatabase:
    """A store for one measurement, in the database of a test, beside Faultline's own tables."""

    version = ""
    settings: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, dsn: str, logs: Path) -> None:
        words = conninfo_to_dict(dsn)
        host, port, user = str(words["host"]), str(words["port"]), str(words["user"])
        url = f"postgresql://{user}@/{words['dbname']}?host={quote(host, safe='')}&port={port}"
        self._environment = {"BENCH_DSN": url, "PGHOST": host, "PGPORT": port, "PGUSER": user}
        self._environment["PGDATABASE"] = str(words["dbname"])
        self._log = logs / "setup.log"

    def fresh(self, system: System, env: dict[str, str]) -> dict[str, str]:
        run([*install.command(system), "setup"], {**env, **self._environment}, self._log, 60)
        return self._environment

    def settle(self) -> None: ...

    def account(self) -> Account:
        return Account(0, 0, 0)

    def drop(self) -> None: ...


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("bench.measure.PEERS", tmp_path)
    (tmp_path / "log").mkdir()
    return tmp_path


def started(system: System, dsn: str, logs: Path) -> Bench:
    if not install.is_installed(system):
        pytest.skip(f"{system.name} is not installed in bench/.peers: run python -m bench.flows --quick")
    return Bench(system, OneDatabase(dsn, logs), "flows", settings=SMALL.settings)


@ADAPTERS
def test_an_adapter_of_flows_gives_what_the_harness_calls(system: System) -> None:
    tree = ast.parse(system.adapter.read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}

    assert {"setup", "bulk", "single", "left", "work", "send"} <= names
    assert {"steps", "short", "fan", "answer", "killed"} <= names


@ADAPTERS
def test_every_setting_of_flows_names_its_source(system: System) -> None:
    assert system.settings
    assert all(one["setting"] and one["source"] for one in system.settings)
    assert any("kill -9" in one["setting"] for one in system.settings)


@ADAPTERS
def test_steps_of_one_flow_are_measured(system: System, dsn: str, logs: Path) -> None:
    with started(system, dsn, logs) as bench:
        found = measure.steps(bench, SMALL)

    assert found["rate"] > 0
    assert bench.system is system


@ADAPTERS
def test_short_flows_are_measured_until_the_last_step_of_the_last_one(system: System, dsn: str, logs: Path) -> None:
    with started(system, dsn, logs) as bench:
        found = measure.short(bench, 10)
        stamps = bench.stamps()

    assert found["rate"] > 0
    assert len(stamps) == 20


@ADAPTERS
def test_children_and_their_results_are_measured(system: System, dsn: str, logs: Path) -> None:
    with started(system, dsn, logs) as bench:
        found = measure.fan(bench, SMALL)

    assert found["seconds"] > 0
    assert found["children"] == 20


@ADAPTERS
def test_signals_are_measured_from_the_call_that_sends_them(system: System, dsn: str, logs: Path) -> None:
    with started(system, dsn, logs) as bench:
        found = measure.answer(bench, SMALL)

    assert found["signals"] == 3
    assert 0 < found["p50_ms"] <= found["p99_ms"]


@ADAPTERS
def test_a_flow_goes_on_in_a_worker_that_is_started_again(system: System, dsn: str, logs: Path) -> None:
    """In whichever system: otherwise its recovery is not configured as it should be."""
    with started(system, dsn, logs) as bench:
        found = measure.killed(bench, SMALL, is_restarted=True)

    assert found["resumed"] == 2
    assert found["steps_again"] == 0


def test_a_flow_goes_on_in_the_worker_beside(dsn: str, logs: Path) -> None:
    with started(catalog.FLOWS[0], dsn, logs) as bench:
        found = measure.killed(bench, SMALL, is_restarted=False)

    assert found["resumed"] == 2
    assert found["steps_again"] == 0
    assert 0 < found["seconds"] <= found["worst_seconds"]


def a_result() -> dict[str, Any]:
    death = {"flows": 4, "resumed": 4, "waited_seconds": 150.0, "steps_again": 0}
    found = [
        {"system": "Faultline", "workload": "steps", "round": 0, "rate": 800.0},
        {"system": "Faultline", "workload": "short", "round": 0, "rate": 900.0, "wal": 3000.0},
        {"system": "Faultline", "workload": "short", "round": 1, "rate": 1100.0, "wal": 3000.0},
        {"system": "DBOS", "workload": "steps", "round": 0, "rate": 400.0},
        {"system": "DBOS", "workload": "short", "round": 0, "rate": 100.0, "wal": 2000.0},
        {"system": "Faultline", "workload": "fan", "round": 0, "seconds": 0.5, "children": 1000},
        {"system": "DBOS", "workload": "fan", "round": 0, "error": "a worker ended by itself: no memory"},
        {"system": "Faultline", "workload": "killed", "round": 0, **death, "seconds": 3.5, "worst_seconds": 4.1},
        {"system": "DBOS", "workload": "killed", "round": 0, **death, "seconds": 2.0, "worst_seconds": 2.2},
        {"system": "Faultline", "workload": "beside", "round": 0, **death, "seconds": 3.6, "worst_seconds": 4.0},
        {"system": "DBOS", "workload": "beside", "round": 0, **death, "resumed": 0},
    ]
    systems = [system for system in catalog.FLOWS if system.name in ("Faultline", "DBOS")]
    return {
        "part": "flow_peers",
        "quick": False,
        "machine": {"processor": "a chip", "cores": 2, "memory_gb": 4.0, "at": "2026-01-02T03:04:05+00:00"},
        "stores": {"postgresql": {"version": "18.4", "settings": {"fsync": "on"}}},
        "workloads": WORKLOADS,
        "systems": [
            {"name": s.name, "store": s.store, "version": "1.0", "settings": s.settings, "missing": None} for s in systems
        ],
        "absent": {"Temporal": "needs a server"},
        "measurements": found,
    }


def test_the_section_shows_flows_side_by_side(tmp_path: Path) -> None:
    page = flow_peers(a_result(), tmp_path)

    assert "| Faultline | **800** | **1,000** (900–1,100) | **0.5** |" in page
    assert "| DBOS | 2.0× | 10.0× |" in page
    assert (tmp_path / "flows.svg").exists()


def test_the_section_says_where_a_peer_is_better_and_who_never_takes_over(tmp_path: Path) -> None:
    page = flow_peers(a_result(), tmp_path)

    assert "| DBOS | **2** (worst 2.2) | not within 150 s | 0 |" in page
    better = page.partition("### Where a peer's flows are better")[2].partition("###")[0]
    assert "after kill -9, started again at once, s: DBOS 2; Faultline 3.5" in better
    assert "WAL of a flow of three steps, B: DBOS 2,000; Faultline 3,000" in better
    gaps = page.partition("### Whose flows were not measured")[2]
    assert "- Temporal: needs a server" in gaps
    assert "- DBOS, fan: a worker ended by itself: no memory" in gaps


def test_the_page_has_a_place_for_what_flows_cost() -> None:
    page = report.PAGE.read_text()

    for part in ("flows", "flow_peers"):
        assert f"<!-- bench:{part} -->" in page
        assert f"<!-- /bench:{part} -->" in page


def test_what_flows_cost_is_reported_with_the_machine(dsn: str) -> None:
    effort = flows.Effort(children=50, rounds=1, signals=2, flows=5, suspended=1_000)

    told = flows.measure(dsn, effort=effort, tell=lambda _: None).told()

    assert told["part"] == "flows"
    assert told["machine"]["postgres"]
    assert {one["name"] for one in told["figures"]} > {"signal to running again, p50", "recorded steps, one worker process"}
    assert all(one["value"] is not None for one in told["figures"])

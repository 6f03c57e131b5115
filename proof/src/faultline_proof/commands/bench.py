"""The command that measures. It uses a private PostgreSQL unless --dsn names a server, and always scratch databases."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli.commands.database import AsJson, resolved
from faultline.core.errors import ConfigError
from faultline_proof.commands.proof import EMBEDDED, PrivateDsn

if TYPE_CHECKING:
    from faultline_proof.bench.protocol import Figure
    from faultline_proof.bench.report import Report

#: What `all` is made of: the figures with goals, some minutes in all.
_FIGURES = ("protocol", "worker", "computing", "service", "flows", "limits")
#: Those that take their time and answer with tables and curves.
_REPORTS = ("limit", "growth", "steady")
#: Those whose JSON says on which machine it was measured, for a page.
_TOLD = ("flows", "limits", *_REPORTS)


def bench(  # noqa: PLR0913, PLR0917 - options of a command
    part: Annotated[
        str, typer.Argument(help="protocol, worker, computing, service, flows, limits or all; limit, growth or steady.")
    ] = "all",
    dsn: PrivateDsn = EMBEDDED,
    jobs: Annotated[int, typer.Option(min=1000, help="Jobs per measurement.")] = 100_000,
    backlog: Annotated[int, typer.Option(min=1000, help="Jobs waiting while claims are timed.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per measurement; the median is reported.")] = 5,
    kills: Annotated[int, typer.Option(min=1, help="Workers to kill.")] = 20,
    minutes: Annotated[float, typer.Option(min=0.1, help="steady: how many minutes.")] = 60.0,
    rate: Annotated[int, typer.Option(min=1, help="steady: jobs per second.")] = 300,
    quick: Annotated[bool, typer.Option("--quick", help="flows, limits, limit, growth: only the small sizes.")] = False,  # noqa: FBT002
    only: Annotated[
        str, typer.Option(help="limits: only queue, groups, noops, hot, held, maintain_limits, schedules or crowd.")
    ] = "",
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Measure what the protocol and the worker cost on this machine.

    `limits` measures what limits, groups and schedules cost beside jobs without them (10 minutes);
    `limit` the floor and where each microsecond goes; `growth` how cost grows with backlog, ledger, workers and
    eight other things (18 minutes, 2 with --quick); `steady` whether anything grows under a constant load.
    """
    if part not in (*_FIGURES, *_REPORTS, "all"):
        known = ", ".join((*_FIGURES, *_REPORTS, "all"))
        raise ConfigError(f"unknown part {part}; choose one of: {known}")
    # Whatever ends us, workers are stopped and scratch databases dropped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with resolved(dsn) as found:
        if part in _TOLD:
            report = _reported(part, found, minutes=minutes, rate=rate, quick=quick, only=only)
            print(json.dumps(report.told()) if as_json else "\n".join(report.lines()))
            return
        figures = _figures(part, found, jobs=jobs, backlog=backlog, rounds=rounds, kills=kills, quick=quick)
    if as_json:
        print(json.dumps([asdict(figure) for figure in figures]))
        return
    from faultline_proof.bench.report import line_of  # noqa: PLC0415 - late, so that --help is quick

    for figure in figures:
        print(line_of(figure))


def _figures(part: str, dsn: str, *, jobs: int, backlog: int, rounds: int, kills: int, quick: bool) -> list[Figure]:
    from faultline_proof.bench import computing, flows, limits, protocol, service, worker  # noqa: PLC0415

    figures: list[Figure] = []
    if part in ("protocol", "all"):
        figures += protocol.measure(dsn, jobs=jobs, backlog=backlog, tell=_tell)
    if part in ("worker", "all"):
        figures += worker.measure(dsn, effort=worker.Effort(jobs, rounds, kills), tell=_tell)
    if part in ("computing", "all"):
        figures += computing.measure(dsn, jobs=max(1000, jobs // 25), rounds=rounds, tell=_tell)
    if part in ("service", "all"):
        figures += service.measure(dsn, ledger=backlog, tell=_tell)
    if part == "all":
        figures += flows.measure(dsn, quick=quick, tell=_tell).figures
        figures += limits.measure(dsn, quick=quick, tell=_tell).figures
    return figures


def _reported(part: str, dsn: str, *, minutes: float, rate: int, quick: bool, only: str) -> Report:
    from faultline_proof.bench import flows, growth, limit, limits, steady  # noqa: PLC0415

    if part == "flows":
        return flows.measure(dsn, quick=quick, tell=_tell)
    if part == "limits":
        return limits.measure(dsn, quick=quick, only=only, tell=_tell)
    if part == "limit":
        return limit.measure(dsn, quick=quick, tell=_tell)
    if part == "growth":
        return growth.measure(dsn, quick=quick, tell=_tell)
    return steady.measure(dsn, steady.Plan(minutes=minutes, per_second=rate), tell=_tell)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

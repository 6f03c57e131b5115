"""Faultline and its peers: `python -m bench [--quick] [--minutes 22] [--only NAME …]`, then `python -m bench.report`."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import catalog, install, stores, workloads
from bench.processes import Failed
from faultline_proof.bench.report import commit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.catalog import System
    from bench.stores import Store

RESULTS = catalog.HERE / "results"


def main() -> None:
    words = _words()
    # Whoever ends us with a signal wants everything ended that we have started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = words.only or (catalog.QUICK if words.quick else [system.name for system in catalog.ALL])
    systems = [system for system in catalog.ALL if system.name in names]
    minutes = words.minutes or (4 if words.quick else 22)
    with alone():
        _compare(words, systems, minutes)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Two comparisons of a checkout would share a PostgreSQL, and the machine."""
    (catalog.PEERS / "log").mkdir(parents=True, exist_ok=True)
    with (catalog.PEERS / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another comparison runs in this checkout: they would share a PostgreSQL, and the machine")
        yield


def _compare(words: argparse.Namespace, systems: Sequence[System], minutes: float) -> None:
    begun = time.monotonic()
    missing = install.install(systems, tell)
    tell(f"installed after {time.monotonic() - begun:.0f} s; measuring for up to {minutes:g} minutes")
    with contextlib.ExitStack() as stack:
        found = open_stores(stack, systems, missing)
        run = workloads.Run(found, tell, time.monotonic() + 60 * minutes)
        able = [system for system in systems if system.name not in missing]
        chosen = words.workload or list(workloads.QUICK if words.quick else workloads.WORKLOADS)
        again = [workload for workload in chosen if workload in workloads.CENTRAL]
        try:
            run.go(able, chosen, again, words.rounds or (2 if words.quick else 5))
        finally:
            write(words.out, result(systems, missing, found, run, quick=words.quick))
    shutil.rmtree(catalog.PEERS / "log", ignore_errors=True)


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four systems, three workloads, about four minutes")
    parser.add_argument("--minutes", type=float, help="measure for so long at the most; installing not counted")
    parser.add_argument("--rounds", type=int, help="rounds of the central workloads, while there is time")
    names = [system.name for system in catalog.ALL]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--workload", nargs="+", choices=list(workloads.WORKLOADS), help="these workloads only")
    parser.add_argument("--out", type=Path, help="where to write the result")
    words = parser.parse_args()
    words.out = words.out or RESULTS / ("quick/peers.json" if words.quick else "peers.json")
    return words


def open_stores(stack: contextlib.ExitStack, systems: Sequence[System], missing: dict[str, str]) -> dict[str, Store]:
    found: dict[str, Store] = {"postgresql": stack.enter_context(stores.postgres())}
    on_redis = [system.name for system in systems if system.store == "redis"]
    if on_redis:
        try:
            found["redis"] = stack.enter_context(stores.redis(tell))
        except (install.NotInstalled, Failed, OSError) as error:
            missing |= dict.fromkeys(on_redis, f"no Redis here: {error}")
    return found


def result(
    systems: Sequence[System], missing: dict[str, str], found: dict[str, Store], run: workloads.Run, *, quick: bool
) -> dict[str, Any]:
    return {
        "part": "peers",
        "quick": quick,
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
            "system": platform.platform(),
            "python": platform.python_version(),
            "load_at_end": os.getloadavg()[0],
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
        },
        "stores": {name: {"version": store.version, "settings": store.settings} for name, store in found.items()},
        "workloads": workloads.WORKLOADS,
        "systems": [
            {
                "name": system.name,
                "store": system.store,
                "version": install.version(system),
                "packages": install.packages(system),
                "settings": system.settings,
                "missing": missing.get(system.name),
            }
            for system in systems
        ],
        "absent": catalog.ABSENT,
        "measurements": run.found,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain(result), indent=1, ensure_ascii=False) + "\n")
    tell(f"written to {path}")


def plain(value: Any) -> Any:
    """As it is published: what is no number (WAL on Redis) is null, and what a peer said names no address and no folder."""
    if isinstance(value, str):
        return re.sub(r"(?<!\w)(?:/[\w.@+-]+){2,}/([\w.@+-]+)", r"…/\1", re.sub(r"\b\w+://\S+", "…", value))
    if isinstance(value, float):
        return round(value, 4) if value == value and abs(value) != float("inf") else None  # noqa: PLR0124
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def tell(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {line}", flush=True)


if __name__ == "__main__":
    main()

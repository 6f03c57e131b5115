"""Put each peer, as pinned, into an environment of its own below `.peers`. What fails is told, and the rest goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from bench.catalog import ENVIRONMENTS, PEERS, System

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PATIENCE_SECONDS = 600
_DEBIAN = ("redis-server", "redis-tools", "libatomic1", "libjemalloc2", "liblzf1")


class NotInstalled(Exception):
    """A peer cannot run here, and why."""


def install(systems: Sequence[System], tell: Callable[[str], None]) -> dict[str, str]:
    """Install what is missing. Gives the reasons of those that could not be."""
    PEERS.mkdir(exist_ok=True)
    with ThreadPoolExecutor(3) as threads:
        reasons = list(threads.map(lambda system: _reason(system, tell), systems))
    return {system.name: reason for system, reason in zip(systems, reasons, strict=True) if reason}


def _reason(system: System, tell: Callable[[str], None]) -> str:
    """Install one. Empty when it went well, otherwise why it did not."""
    try:
        if system.key != "faultline":
            (_node if system.node else _python)(system, tell)
    except (NotInstalled, OSError, subprocess.SubprocessError) as error:
        tell(f"{system.name} could not be installed: {error}")
        return f"could not be installed: {error}"
    return ""


def is_installed(system: System) -> bool:
    """Whether its environment is here, with the versions that are pinned."""
    pins = ENVIRONMENTS / f"{system.key}.{'json' if system.node else 'txt'}"
    return system.key == "faultline" or _is_ready(_home(system), pins)


def command(system: System) -> list[str]:
    """How its adapter is run."""
    if system.key == "faultline":
        return [sys.executable, str(system.adapter)]
    if system.node:
        return [str(_home(system) / "node_modules/.bin/node"), str(_home(system) / system.adapter.name)]
    return [str(_home(system) / "bin/python"), str(system.adapter)]


def version(system: System) -> str:
    """The version that takes part: of the checkout, or of the package that is installed."""
    if system.key == "faultline":
        words = ["git", "-C", str(PEERS.parent), "describe", "--always", "--dirty"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return packages(system)[system.package]


def packages(system: System) -> dict[str, str]:
    """Everything that is pinned for it."""
    if system.key == "faultline":
        return {}
    if system.node:
        pinned: dict[str, str] = json.loads((ENVIRONMENTS / f"{system.key}.json").read_text())["dependencies"]
        return pinned
    return dict(line.split("==") for line in (ENVIRONMENTS / f"{system.key}.txt").read_text().split())


def _home(system: System) -> Path:
    return PEERS / system.key


def _python(system: System, tell: Callable[[str], None]) -> None:
    pins = ENVIRONMENTS / f"{system.key}.txt"
    home = _home(system)
    if _is_ready(home, pins):
        return
    tell(f"installing {system.name}")
    shutil.rmtree(home, ignore_errors=True)
    # Debian ships Python without ensurepip: then the pip that we have fills an empty environment.
    if subprocess.run([sys.executable, "-m", "venv", str(home)], capture_output=True, check=False).returncode != 0:
        shutil.rmtree(home, ignore_errors=True)
        _run([sys.executable, "-m", "venv", "--without-pip", str(home)])
    python = str(home / "bin/python")
    pip = [python, "-m", "pip"] if (home / "bin/pip").exists() else [_a_pip(), "--python", python]
    _run([*pip, "install", "--quiet", "--disable-pip-version-check", "-r", str(pins)])
    shutil.copy(pins, home / "pins")


def _a_pip() -> str:
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise NotInstalled("there is no pip")
    return found


def _node(system: System, tell: Callable[[str], None]) -> None:
    pins = ENVIRONMENTS / f"{system.key}.json"
    home = _home(system)
    if not _is_ready(home, pins):
        if shutil.which("npm") is None:
            raise NotInstalled("there is no npm")
        tell(f"installing {system.name}")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        shutil.copy(pins, home / "package.json")
        _run(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"], cwd=home)
        if not (home / "node_modules/.bin/node").exists():
            raise NotInstalled("npm did not bring the pinned Node.js")
        shutil.copy(pins, home / "pins")
    # Node.js looks for packages from where the real file lies: so the adapters are copied to them.
    for source in (system.adapter, system.adapter.with_name("common.mjs")):
        shutil.copy(source, home / source.name)


def _is_ready(home: Path, pins: Path) -> bool:
    return (home / "pins").exists() and (home / "pins").read_text() == pins.read_text()


def redis_server(tell: Callable[[str], None]) -> tuple[list[str], dict[str, str]]:
    """The command of a Redis server and the environment that it needs: the system's, or Debian's package unpacked here."""
    found = shutil.which("redis-server")
    if found is not None:
        return [found], {}
    home = PEERS / "redis"
    program = home / "usr/bin/redis-server"
    if not program.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise NotInstalled("there is no redis-server, and no apt-get to get it with")
        tell("unpacking redis-server")
        home.mkdir(parents=True, exist_ok=True)
        _run(["apt-get", "download", *_DEBIAN], cwd=home)
        for package in home.glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(home)])
            package.unlink()
    libraries = ":".join(str(folder) for folder in (home / "usr/lib").glob("*-linux-*"))
    return [str(program)], {"LD_LIBRARY_PATH": libraries}


def _run(words: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS, env=dict(os.environ)
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotInstalled(f"{Path(words[0]).name} said: {said[-1][:300] if said else 'nothing'}")

"""Environments with other versions of Django, made once and kept in `.faultline`. Where none can be made, it is said why."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import tarfile
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tools import dist

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".faultline/django"
_SECONDS = 900


class Unavailable(Exception):
    """There is no such environment here, and none can be made."""


class Environment(NamedTuple):
    python: str
    #: The folder with Django's own tests of tasks in it.
    own_tests: Path


@cache
def environment(series: str) -> Environment:
    """An environment with the newest Django of a series, as `6.1`. Raises `Unavailable`."""
    python = _interpreter("3.12")
    needed = [f"Django~={series}.0", *_dependencies()]
    folder = KEPT / series
    made, stamp = folder / "bin/python", folder / "made-from"
    recipe = "\n".join([python, *needed])
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{series}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in other processes may want the same one
        if not stamp.exists() or stamp.read_text() != recipe:
            shutil.rmtree(folder, ignore_errors=True)
            _run([python, "-m", "venv", str(folder)])
            _run([str(made), "-m", "pip", "install", "--quiet", *needed])
            _fetch_own_tests(str(made), folder)
            stamp.write_text(recipe)
    return Environment(str(made), folder / "own")


def _interpreter(oldest: str) -> str:
    """A Python of this version or newer."""
    found = next(filter(None, map(dist.interpreter, (known for known in dist.versions() if known >= oldest))), None)
    if found is None:
        raise Unavailable(f"no Python {oldest} or newer is on PATH or in pyenv")
    return found


def _dependencies() -> list[str]:
    """What Faultline needs, and its command line."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["cli"]]


def _fetch_own_tests(python: str, folder: Path) -> None:
    said = _run([python, "-c", "import django; print(django.get_version())"])
    download = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(folder / "sdist")]
    _run([python, *download, f"Django=={said.strip()}"])
    [archive] = (folder / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        for member in packed:
            inside = re.fullmatch(r"[^/]+/tests/(tasks/\w+\.py)", member.name)
            if inside is not None and (read := packed.extractfile(member)) is not None:
                target = folder / "own" / inside[1]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(read.read())
    shutil.rmtree(folder / "sdist")


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS).stdout
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{' '.join(command)[:200]} failed: {str(error.stderr).strip()[-500:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(command)[:200]}: {error}") from error

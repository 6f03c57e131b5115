"""The previous build, beside this one: its wheel is unpacked into a folder, and its programs find it there first."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import IO

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.upgrades.program"


def previous_wheel() -> Path:
    """`make previous` renews it, when a release is made."""
    (wheel,) = (Path(__file__).parent / "previous").glob("*.whl")
    return wheel


class Build(NamedTuple):
    """A build of Faultline. `folder` holds its package; None means this one."""

    dsn: str
    folder: Path | None = None

    def run(self, *words: str) -> str:
        done = subprocess.run(
            self._command(*words), env=self._environ(), cwd=ROOT, capture_output=True, text=True, check=False, timeout=180
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def worker(self, log: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command("-m", "faultline", "worker", f"{PROGRAM}:app", "--grace", "10"),
            env=self._environ(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=log,
            text=True,
        )

    def producer(self, prefix: str, kind: str, output: IO[str], log: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command("-m", PROGRAM, prefix, kind),
            env=self._environ(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=log,
            text=True,
        )

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, *words]

    def _environ(self) -> dict[str, str]:
        path = {"PYTHONPATH": str(self.folder)} if self.folder else {}
        return {**os.environ, **path, "FAULTLINE_DSN": self.dsn}


def unpack(folder: Path) -> Path:
    with zipfile.ZipFile(previous_wheel()) as wheel:
        wheel.extractall(folder)
    return folder


def previous_texts() -> dict[str, str]:
    """Path inside the schema → text, of the previous build."""
    with zipfile.ZipFile(previous_wheel()) as wheel:
        return {
            name.removeprefix("faultline/schema/"): wheel.read(name).decode()
            for name in wheel.namelist()
            if name.startswith("faultline/schema/") and name.endswith(".sql")
        }

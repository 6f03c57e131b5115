"""The previous build, beside this one: its wheel is unpacked into a folder, and its programs find it there first."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from faultline.store.install.schema_text import functions_in

if TYPE_CHECKING:
    from typing import IO

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.upgrades.program"
KEPT = Path(__file__).parent / "previous"


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


def previous_wheel(folder: Path) -> Path:
    """The one that `make previous` keeps. Before the first release there is none: this build's own is made in `folder`."""
    kept = [*KEPT.glob("*.whl")]
    if not kept:
        words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        kept = [*folder.glob("*.whl")]
    (wheel,) = kept
    return wheel


def unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


def texts(package: Path) -> dict[str, str]:
    """Name of the function or file → text, of the schema of a package. Not by its folder: what was moved is the same.

    Without the invariants, which no client depends on.
    """
    schema = package / "schema"
    found: list[tuple[str, str]] = []
    for file in schema.rglob("*.sql"):
        folders = file.relative_to(schema).parent.parts
        if "invariants" not in folders:
            functions = functions_in(file.read_text()) if folders and "migrations" not in folders else []
            found += [(f"{one.name}.sql", one.text) for one in functions] or [(file.name, file.read_text())]
    assert len(dict(found)) == len(found), "two functions or files of the schema have one name"
    return dict(found)

"""Build what is published, and try it as a new user would: `make dist`.

The source distribution is built first and the wheel from that, so that a file missing in it is noticed. Then, for each
version of Python that is here, the wheel is installed into an empty environment, and examples/hello.py runs on a database
of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = "cli,embedded"
HELLO = "Hello, world!"
_PATIENCE_SECONDS = 600.0


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - whoever runs this watches it


def versions() -> list[str]:
    """The versions of Python that the package says it supports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [line.rpartition(" :: ")[2] for line in project["classifiers"] if line.startswith("Programming Language")]
    return [word for word in said if word.startswith("3.")]


def run(*words: str | Path, folder: Path = ROOT, **environment: str) -> str:
    """What it prints. What went wrong is shown, and ends everything."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_SECONDS,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", folder)
    (source,) = folder.glob("*.tar.gz")
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    run(sys.executable, "-m", "pip", *words)
    (wheel,) = folder.glob("*.whl")
    return source, wheel


def interpreter(version: str) -> str | None:
    """A Python of this version that works: a name may be there that leads to none."""
    found = shutil.which(f"python{version}")
    works = found and not subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode
    return found if works else None


def greet(wheel: Path, python: str) -> None:
    """Install the wheel into an empty environment and run hello there, outside of this folder."""
    with tempfile.TemporaryDirectory(prefix="faultline-dist-") as made:
        folder = Path(made)
        run(python, "-m", "venv", "--without-pip", folder / "venv")
        installed = folder / "venv/bin"
        run(sys.executable, "-m", "pip", "--python", installed / "python", "install", "--quiet", f"{wheel}[{EXTRAS}]")
        shutil.copy(ROOT / "examples/hello.py", folder)
        there = {"FAULTLINE_DSN": "embedded:", "PYTHONPATH": "", "VIRTUAL_ENV": str(folder / "venv")}
        try:
            run(installed / "faultline", "migrate", folder=folder, **there)
            printed = run(installed / "python", "hello.py", folder=folder, **there).strip()
        finally:
            # Not checked: it must not hide what went wrong before.
            words = [str(installed / "faultline"), "db", "destroy"]
            subprocess.run(words, cwd=folder, env={**os.environ, **there}, capture_output=True, check=False)
        if printed != HELLO:
            sys.exit(f"hello.py printed {printed!r} instead of {HELLO!r}")


def main() -> None:
    built = build(ROOT / "dist")
    say("\n".join(str(path.relative_to(ROOT)) for path in built))
    for version in versions():
        python = interpreter(version)
        if python:
            greet(built[1], python)
        say(f"Python {version}: {HELLO if python else 'not installed here, not tried'}")


if __name__ == "__main__":
    main()

"""Build what is published, and try it as a new user would: `make dist`.

Each source distribution is built first and its wheel from that, without git, so that a file missing in it is noticed. Then,
for each version of Python that is here, the wheels are installed into an empty environment, outside of this checkout:
examples/hello.py runs on a database of its own, and so does the demo of the proof.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
#: What is published: the folder of each distribution, and the package in it.
PUBLISHED = {".": "faultline", "proof": "faultline_proof"}
HELLO = "Hello, world!"
_WHERE = "import sys, faultline, faultline_proof; print(*sys.path, faultline.__file__, faultline_proof.__file__, sep='\\n')"
_PATIENCE_SECONDS = 900.0


class Built(NamedTuple):
    source: Path
    wheel: Path


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - whoever runs this watches it


def project(folder: Path) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def version(root: Path = ROOT) -> str:
    """The version in pyproject.toml. The proof has the same one, and each of the two asks for exactly that of the other."""
    here = str(project(root)["version"])
    other = re.findall(r'^version = "(.*)"$|"faultline-\w+(?:\[.*\])?==(.*)"', _text(root, "proof"), re.MULTILINE)
    pins = re.findall(r'"faultline-proof==(.*)"', _text(root, "."))
    if {*pins, *("".join(found) for found in other)} != {here} or (len(pins), len(other)) != (1, 2):
        sys.exit(f"pyproject.toml says version {here}; proof/pyproject.toml, or what one asks of the other, says otherwise")
    return here


def _text(root: Path, folder: str) -> str:
    return (root / folder / "pyproject.toml").read_text()


def versions() -> list[str]:
    """The versions of Python that the package says it supports."""
    said = [line.rpartition(" :: ")[2] for line in project(ROOT)["classifiers"]]  # type: ignore[attr-defined]
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


def build(folder: Path, *, published: str = ".") -> Built:
    """The source distribution, and the wheel that is built from it where there is no git."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", folder, folder=ROOT / published)
    name = f"{str(project(ROOT / published)['name']).replace('-', '_')}-{version()}"
    source = folder / f"{name}.tar.gz"
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    run(sys.executable, "-m", "pip", *words, folder=folder, PATH=str(Path(sys.executable).parent))
    built = Built(source, folder / f"{name}-py3-none-any.whl")
    strays = sorted(strays_of(built, PUBLISHED[published]))
    if strays:
        sys.exit(f"{name} has in it what does not belong there: {', '.join(strays)}")
    return built


def strays_of(built: Built, package: str) -> set[str]:
    """What is neither the package nor says what it is: tests, above all."""
    name = built.source.name.removesuffix(".tar.gz")
    with zipfile.ZipFile(built.wheel) as wheel:
        inside = {path.partition("/")[0] for path in wheel.namelist()} - {package, f"{name}.dist-info"}
    with tarfile.open(built.source) as source:
        paths = {path.removeprefix(f"{name}/") for path in source.getnames()}
    said = {"PKG-INFO", "pyproject.toml", "hatch_build.py", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore"}
    return inside | {path for path in paths - said if not path.startswith(f"src/{package}/")}


def interpreter(wanted: str) -> str | None:
    """A Python of this version that works: this one, one on PATH, or one that pyenv has."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    pyenvs = map(str, sorted(pyenv.glob(f"{wanted}.*/bin/python{wanted}")))
    found = [sys.executable, shutil.which(f"python{wanted}"), *pyenvs]
    for python in filter(None, found):
        # A name may be there that leads to none.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            ask = "import sys, venv; print('{}.{}'.format(*sys.version_info))"
            if subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip() == wanted:
                return python
    return None


def install(python: str, folder: Path, *wheels: str | Path) -> Path:
    """An environment of this Python with these wheels and what they need, and nothing of this checkout. Its programs."""
    run(python, "-m", "venv", "--without-pip", folder)
    programs = folder / "bin"
    run(sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet", *map(str, wheels))
    return programs


def alone(folder: Path) -> dict[str, str]:
    """The environment of a program that finds what is installed in `folder`, and nothing else."""
    unwanted = ("PYTHON", "FAULTLINE", "DATABASE_URL", "VIRTUAL_ENV")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**clean, "PATH": f"{folder / 'bin'}:{os.defpath}", "FAULTLINE_DSN": "embedded:"}


def try_out(wheels: list[Path], python: str) -> None:
    """Install the wheels into an empty environment; run hello and the demo there."""
    product, *others = wheels
    with tempfile.TemporaryDirectory(prefix="faultline-dist-") as made:
        folder = Path(made)
        programs = install(python, folder / "venv", f"{product}[all]", *others)
        shutil.copy(ROOT / "examples/hello.py", folder)

        def there(program: str, *words: str) -> str:
            command = [str(programs / program), *words]
            done = subprocess.run(
                command, cwd=folder, env=alone(folder / "venv"), capture_output=True, text=True, check=False,
                timeout=_PATIENCE_SECONDS,
            )  # fmt: skip
            if done.returncode:
                sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
            return done.stdout.strip()

        strays = [line for line in there("python", "-c", _WHERE).splitlines() if Path(line).is_relative_to(ROOT)]
        if strays:
            sys.exit(f"the environment finds this checkout: {', '.join(strays)}")
        try:
            there("faultline", "migrate")
            printed = there("python", "hello.py")
            there("faultline", "demo")
        finally:
            # Not checked: it must not hide what went wrong before.
            with contextlib.suppress(SystemExit):
                there("faultline", "db", "destroy")
        if printed != HELLO:
            sys.exit(f"hello.py printed {printed!r} instead of {HELLO!r}")


def main() -> None:
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    built = [build(folder, published=one) for one in PUBLISHED]
    for path in (path for pair in built for path in pair):
        say(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.2f} MB")
    for wanted in versions():
        python = interpreter(wanted)
        if python:
            try_out([pair.wheel for pair in built], python)
        say(f"Python {wanted}: {HELLO if python else 'not installed here, not tried'}")


if __name__ == "__main__":
    main()

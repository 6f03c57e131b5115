"""What a plain `pip install faultline-queue` brings: enough to enqueue and to run a worker in a program, and no more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import dist

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).parents[2]
WHEEL_BYTES_MAX = 1_250_000
#: What a production install must not have in it.
PROOF = re.compile(r"proof|bench|drill|explore|mutant|simulat|soak")

PROGRAM = """
import os, signal, sys
from faultline import Faultline

app = Faultline(sys.argv[1])

@app.task
async def add(a: int, b: int) -> int:
    return a + b

@app.task
def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)

added, stopped = add.enqueue(1, 2), stop.enqueue()
app.run_worker()
print(added.result(timeout=60), sorted({"click", "rich", "typer", "uvloop"} & sys.modules.keys()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def plain_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the product and what it depends on, without any extra."""
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as found:
        found.extractall(packages)
    for package in ("psycopg", "orjson", "typing_extensions", "cronsim", "tzdata"):
        for path in Path(sysconfig.get_path("purelib")).glob(f"{package}*"):
            (packages / path.name).symlink_to(path)
    return folder / "bin/python"


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as found:
        (name,) = [name for name in found.namelist() if name.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(found.read(name).decode())


def test_the_wheel_is_small_and_has_nothing_of_the_proof_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as found:
        names = found.namelist()

    assert wheel.stat().st_size < WHEEL_BYTES_MAX
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"faultline", "faultline_queue"}
    assert [name for name in names if PROOF.search(name)] == []


def test_a_program_that_only_enqueues_depends_on_two_packages(wheel: Path) -> None:
    wanted = metadata_of(wheel).get_all("Requires-Dist") or []

    always = {re.split(r"[^\w-]", one)[0] for one in wanted if "extra ==" not in one}
    assert always == {"cronsim", "orjson", "psycopg", "tzdata"}


def test_the_package_names_its_versions_of_python(wheel: Path) -> None:
    told = metadata_of(wheel)

    assert told["Requires-Python"] == f">={dist.versions()[0]}"
    assert dist.versions() == ["3.11", "3.12", "3.13"]
    assert "Typing :: Typed" in (told.get_all("Classifier") or [])


def test_every_extra_that_the_documentation_and_messages_name_exists(wheel: Path) -> None:
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {
        extra
        for file in files
        for found in re.findall(r"faultline-queue\[([\w,-]+)\]", file.read_text())
        for extra in found.split(",")
    }

    assert named <= set(metadata_of(wheel).get_all("Provides-Extra") or [])
    assert {"django", "flask", "openai-agents", "otel", "pydantic-ai", "server"} <= named


def test_a_wheel_built_from_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    built = dist.build(tmp_path).wheel

    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(built) as other:
        assert {entry.filename: entry.CRC for entry in one.infolist()} == {
            entry.filename: entry.CRC for entry in other.infolist()
        }


def test_a_plain_install_enqueues_and_runs_a_worker(plain_python: Path, dsn: str) -> None:
    done = subprocess.run([plain_python, "-c", PROGRAM, dsn], capture_output=True, text=True, check=False, timeout=180)

    assert (done.stdout, done.returncode) == ("3 []\n", 0), done.stderr


@pytest.mark.parametrize(
    "started",
    [
        ("-m", "faultline"),
        ("-c", "from importlib.metadata import entry_points as e; e(group='console_scripts')['faultline'].load()()"),
    ],
    ids=["module", "script"],
)
def test_the_command_of_a_plain_install_says_what_to_install(plain_python: Path, started: tuple[str, ...]) -> None:
    asked = subprocess.run([plain_python, *started, "--version"], capture_output=True, text=True, check=False)

    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == (
        "faultline: typer is not installed; for the command line, run: pip install 'faultline-queue[cli]'"
        " (with the dashboard and a private PostgreSQL: 'faultline-queue[all]')\n"
    )


def test_up_without_the_server_says_what_to_install_before_it_starts_anything(plain_python: Path, tmp_path: Path) -> None:
    (packages,) = plain_python.parents[1].glob("lib/python*/site-packages")
    with_cli = {"PYTHONPATH": str(tmp_path / "cli")}
    (tmp_path / "cli").mkdir()
    packages_of_cli = (
        "typer", "rich", "markdown_it", "mdurl", "pygments", "shellingham", "annotated_doc",
        "pydantic", "pydantic_core", "annotated_types", "typing_inspection",
    )  # fmt: skip
    for package in packages_of_cli:
        (tmp_path / "cli" / package).symlink_to(Path(sysconfig.get_path("purelib")) / package)
    assert not (packages / "uvicorn").exists()

    asked = subprocess.run(
        [plain_python, "-m", "faultline", "up"],
        cwd=tmp_path, env={**os.environ, **with_cli}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == (
        "faultline: fastapi is not installed; run: pip install 'faultline-queue[all]'"
        " (without installing: uvx --from 'faultline-queue[all]' faultline up)\n"
    )
    assert not (tmp_path / ".faultline").exists()

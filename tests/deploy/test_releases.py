"""What is published works from its own files alone, and is tagged only if it can be made again."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.waiting import free_port, until
from tools import dist, release

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_SECONDS = 60.0
UNDATED, DATED = "## 0.1.0 (unreleased)", "## 0.1.0 (2026-11-18)"


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> dist.Built:
    return dist.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture
def address(product: dist.Built, tmp_path: Path) -> Iterator[str]:
    """`faultline up` from the wheel, in an environment and a folder of its own."""
    dist.install(sys.executable, tmp_path / "venv", f"{product.wheel}[all]")
    port = free_port()
    faultline, around = str(tmp_path / "venv/bin/faultline"), dist.alone(tmp_path / "venv")
    command = [faultline, "up", "--port", str(port), "--workers", "1"]
    with subprocess.Popen(command, cwd=tmp_path, env=around, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while not (line := process.stdout.readline()).startswith("Faultline is up"):
                assert line, "it ended before it was up"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(PATIENCE_SECONDS) == 0
            finally:
                process.kill()
                subprocess.run([faultline, "db", "destroy"], cwd=tmp_path, env=around, capture_output=True, check=True)


def page(address: str) -> str:
    asked = urllib.request.Request(address, headers={"Accept": "text/html"})  # noqa: S310 - our own address
    with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310
        return str(answer.read().decode())


@pytest.mark.long
def test_the_wheel_alone_shows_a_race_whose_late_write_was_refused(address: str) -> None:
    def refused() -> str | None:
        for job in re.findall(r'href="(/jobs/[0-9a-f-]{36})"', page(f"{address}/jobs?queue=races")):
            shown = page(address + job)
            if "complete refused" in shown and "in the ledger, under token 2" in shown:
                return shown
        return None

    shown = until(refused, otherwise="no job of the queue `races` has a refused write")

    assert "token mismatch" in shown
    with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:  # noqa: S310
        assert json.load(answer)["status"] == "up"


@pytest.mark.long
def test_everything_that_is_published_runs_in_an_empty_environment(product: dist.Built, tmp_path: Path) -> None:
    proof = dist.build(tmp_path, published="proof")

    dist.try_out([product.wheel, proof.wheel], sys.executable)


def test_what_is_no_part_of_the_package_is_found(product: dist.Built) -> None:
    assert dist.strays_of(product, "faultline") == set()

    strays = dist.strays_of(product, "another")

    assert {"faultline", "src/faultline/__init__.py"} <= strays


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A commit that can be released."""
    (tmp_path / "proof").mkdir()
    for name in ("pyproject.toml", "proof/pyproject.toml"):
        (tmp_path / name).write_text((dist.ROOT / name).read_text())
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{DATED}\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=True)


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "A commit")


def change(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_a_dated_commit_without_changes_and_without_a_tag_can_be_released(checkout: Path) -> None:
    assert release.refusals(checkout) == []


def test_changes_that_are_not_committed_are_not_released(checkout: Path) -> None:
    (checkout / "new.py").touch()

    (refused,) = release.refusals(checkout)

    assert "not committed" in refused
    assert "new.py" in refused


@pytest.mark.parametrize("heading", [UNDATED, "## 0.1.0", "## 0.0.9 (2026-11-18)", "## 0.1.0 2026-11-18", "# 0.1.0"])
def test_a_changelog_without_the_date_of_this_version_is_not_released(checkout: Path, heading: str) -> None:
    change(checkout / "CHANGELOG.md", DATED, heading)
    commit(checkout)

    (refused,) = release.refusals(checkout)

    assert "`## 0.1.0 (YYYY-MM-DD)`" in refused


def test_a_version_is_released_once(checkout: Path) -> None:
    git(checkout, "tag", "v0.1.0")

    (refused,) = release.refusals(checkout)

    assert "tag v0.1.0" in refused


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"'),
        ("pyproject.toml", "faultline-proof==0.1.0", "faultline-proof==0.2.0"),
        ("proof/pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"'),
        ("proof/pyproject.toml", "==0.1.0", "==0.2.0"),
        ("proof/pyproject.toml", "==0.1.0", ">=0.1.0"),
    ],
)
def test_two_versions_in_one_release_are_refused(checkout: Path, file: str, old: str, new: str) -> None:
    change(checkout / file, old, new)

    with pytest.raises(SystemExit, match="says otherwise"):
        release.refusals(checkout)


def test_the_changelog_begins_with_the_version_that_is_built() -> None:
    headings = re.findall(r"^## (\S+) \((.*)\)$", (dist.ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings[0][0] == dist.version()

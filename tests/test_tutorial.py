"""The tutorials tell the truth: their programs and commands run as printed, in order, from a venv with the built wheel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import pytest

from faultline import embedded
from tests.waiting import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs/tutorial"
PATIENCE_SECONDS = 180.0
#: Stands in for systemd: starts and stops what the unit says, as the unit says it.
SYSTEMCTL = r"""#!/usr/bin/env bash
set -eu
what=$2 name="${!#}" unit=$HOME/.config/systemd/user/${!#}.service
said() { sed -n "s/^$1=//p" "$unit" | sed "s#%h#$HOME#g"; }
stop() { kill "$(cat "$HOME/$name.pid")"; while kill -0 "$(cat "$HOME/$name.pid")" 2> /dev/null; do sleep 0.1; done; }
start() {
  ( cd "$(said WorkingDirectory)"; set -a; . "$(said EnvironmentFile)"; exec $(said ExecStart) ) > "$HOME/$name.log" 2>&1 &
  echo $! > "$HOME/$name.pid"
}
case $what in
  enable) start ;;
  restart) stop; start ;;
  disable) stop ;;
esac
"""


def blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, ROOT / "proof"):
        if (project / "pyproject.toml").exists():
            words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(project)]
            subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    return folder


class Terminal:
    """One bash that lives as long as the tutorial. What it prints goes to a file: a server that is left running keeps it."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.printed = home / "terminal.txt"
        with self.printed.open("w") as printed:
            self.shell = subprocess.Popen(
                ["bash"], cwd=home, env=environment, stdin=subprocess.PIPE, stdout=printed, stderr=subprocess.STDOUT,
                text=True, start_new_session=True,
            )  # fmt: skip
        self._commands = 0

    def run(self, command: str) -> str:
        """Type a command, and answer with what it printed. Raises unless it succeeds."""
        before = self.printed.stat().st_size
        self._commands += 1
        mark = f"[command {self._commands} ended: "
        assert self.shell.stdin is not None
        self.shell.stdin.write(f'{command}\necho "{mark}$?]"\n')
        self.shell.stdin.flush()
        give_up = time.monotonic() + PATIENCE_SECONDS
        while (told := self.printed.read_bytes()[before:].decode()).find(mark) < 0:
            assert self.shell.poll() is None, f"the shell ended: {told}"
            assert time.monotonic() < give_up, f"{command} takes too long: {told}"
            time.sleep(0.05)
        printed, _, code = told.partition(mark)
        assert code.startswith("0]"), f"{command} failed: {printed}"
        return printed

    def close(self) -> None:
        os.killpg(self.shell.pid, signal.SIGTERM)
        self.shell.communicate()


@pytest.fixture
def terminal(tmp_path: Path, wheels: Path) -> Iterator[Terminal]:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "systemctl").write_text(SYSTEMCTL)
    (tools / "systemctl").chmod(0o755)
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    opened = Terminal(tmp_path, environment)
    yield opened
    opened.close()


def lend_packages(venv: Path) -> None:
    """Let a new venv see what this one has, but for Faultline: pip finds all that it needs without an index."""
    others = venv / "others"
    others.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "faultline" not in path.name.lower():
            (others / path.name).symlink_to(path)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{others}\n")


def as_address(dsn: str) -> str:
    known = psycopg.conninfo.conninfo_to_dict(dsn)
    words = "&".join(f"{word}={quote(str(value), safe='')}" for word, value in known.items())
    return f"'postgresql:///?{words}'"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[str]:
    """The server that is deployed to. Not that of the tests: it runs without fsync, and the doctor would say so."""
    with embedded.join(tmp_path / "own") as server:
        yield server.dsn


@pytest.mark.long
def test_the_tutorial_works_as_printed(own_server: str, tmp_path: Path, terminal: Terminal) -> None:
    text = (TUTORIALS / "index.md").read_text().replace("8080", str(free_port()))
    text = text.replace("postgresql://shop@db.example.org/shop", as_address(own_server))

    follow(text, tmp_path / "shop", terminal)


@pytest.mark.long
def test_the_tutorial_about_flows_works_as_printed(tmp_path: Path, terminal: Terminal) -> None:
    follow((TUTORIALS / "flows.md").read_text(), tmp_path / "press", terminal, exactly=True)


@pytest.mark.parametrize(
    ("promised", "printed", "is_true"),
    [
        ("sent\n", "sent\n", True),
        ("sent\n", "sent \n", True),
        ("sent\n", "sent; kept\n", False),
        ("sent\n", "sent\nkept\n", False),
        ("sent\nkept\n", "sent\n", False),
        ("job 01…  done\n", "job 01a1-7  done\n", True),
        ("job 01…  done\n", "job 01a1-7  failed\n", False),
        ("id    since\n01…   2 s\n", "id          since\n01a1-7      2 s\n", True),
        ("sent\n", "bash: line 7:  42 Killed                  faultline worker\nsent\n", True),
    ],
)
def test_what_a_page_says_is_compared_with_all_that_was_printed(promised: str, printed: str, is_true: bool) -> None:  # noqa: FBT001
    assert says(promised, printed) is is_true


def says(promised: str, printed: str) -> bool:
    """Whether these are the lines that were printed. `…` stands for anything, blanks only part columns.

    What bash says of a worker that was killed it says in its own time.
    """
    lines = [_evened(line) for line in printed.splitlines() if not re.match(r"bash: line \d+: +\d+ Killed", line)]
    wanted = [".*".join(map(re.escape, _evened(line).split("…"))) for line in promised.splitlines()]
    return len(lines) == len(wanted) and all(map(re.fullmatch, wanted, lines))


def _evened(line: str) -> str:
    return re.sub(r"\s+", " ", line).strip()


def follow(text: str, folder: Path, terminal: Terminal, *, exactly: bool = False) -> None:
    """Write every program and type every command of a page, and see it print what the page says.

    :param exactly: All that a command prints, where the page says something.
    """
    for language, block in blocks(text):
        if language != "console":
            name = block.partition("\n")[0].removeprefix("# ")
            (folder / name).write_text(block)
            continue
        for command, promised in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            printed = terminal.run(command)
            if exactly and promised:
                assert says(promised, printed), f"{command} does not print {promised!r}, but: {printed}"
            rest = iter(printed.splitlines())
            for line in () if exactly else promised.splitlines():
                assert any(line in found for found in rest), f"{command} does not print {line!r}, but: {printed}"
            if " -m venv " in command:
                lend_packages(folder / ".venv")

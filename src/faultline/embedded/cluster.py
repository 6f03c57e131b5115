"""The data folder of a server. The promise: it is complete with its database, or it does not exist.

It is made under another name and renamed at the end, so a kill halfway leaves nothing that looks like data. PostgreSQL's
single-user mode creates the database before the rename, without a server or a client.
"""

from __future__ import annotations

import os
import secrets
import shutil
from typing import TYPE_CHECKING

from faultline.core.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from faultline.embedded.account import Account
    from faultline.embedded.binaries import Binaries
    from faultline.embedded.files import Files

NAME = "faultline"  # of the superuser and of the database

SETTINGS: Mapping[str, str] = {
    "shared_buffers": "256MB",
    "max_connections": "200",
    "max_wal_size": "2GB",
    # In the data folder, where the next start removes it. A killed server would leave it in the system's shared memory.
    "dynamic_shared_memory_type": "mmap",
    "log_line_prefix": "%m [%p] ",
    # The superuser has the name of Faultline's schema: with "$user" first, a program would create its own tables in it.
    "search_path": 'public, "$user"',
    "port": "5432",
    # Everybody who can connect is superuser, so the only way is a socket in a private folder.
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
}
OURS = frozenset(
    ("port", "listen_addresses", "unix_socket_permissions", "unix_socket_directories", "data_directory", "hba_file")
)

_DRAFT = "initdb-"


def check_settings(settings: Mapping[str, str]) -> None:
    refused = sorted(name for name in settings if name.strip().lower().replace("-", "_") in OURS)
    if refused:
        raise EmbeddedError(
            f"An embedded server does not allow the setting {', '.join(refused)}: it would expose the server to others, or "
            "hide it from Faultline. Use your own server for that (FAULTLINE_DSN=postgresql://...)."
        )


def check_version(files: Files, binaries: Binaries) -> None:
    there = files.version
    if there is not None and there != str(binaries.major):
        raise EmbeddedError(
            f"The data in {files.data} is of PostgreSQL {there}, but the programs in {binaries.folder} are of "
            f"PostgreSQL {binaries.version}. Set FAULTLINE_PG_BIN to a folder with PostgreSQL {there}, migrate the "
            "data with pg_upgrade, or choose another folder."
        )


def initialise(files: Files, account: Account, binaries: Binaries, settings: Mapping[str, str]) -> None:
    for left in files.home.glob(_DRAFT + "*"):
        # Left by a program that was killed. Its initdb may still write there; then the next start removes the rest.
        shutil.rmtree(left, ignore_errors=True)
    draft = files.home / (_DRAFT + secrets.token_hex(8))
    try:
        _run_initdb(draft, account, binaries, sync=settings.get("fsync") != "off")
        _create_database(draft, account, binaries, settings)
        draft.rename(files.data)
        _sync(files.home)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _run_initdb(data: Path, account: Account, binaries: Binaries, *, sync: bool) -> None:
    command = [binaries.program("initdb"), "-D", str(data), "-U", NAME, "--auth=trust", "--encoding=UTF8", "--locale=C"]
    command += ["--data-checksums", "--no-instructions", *(() if sync else ("--no-sync",))]
    done = account.run(command)
    if done.returncode != 0:
        raise EmbeddedError(
            f"initdb could not create the data folder {data} as user {account.name}:\n{_last(done.stdout + done.stderr)}"
        )


def _create_database(data: Path, account: Account, binaries: Binaries, settings: Mapping[str, str]) -> None:
    command = [binaries.program("postgres"), "--single", "-D", str(data)]
    if settings.get("fsync") == "off":
        command += ["-c", "fsync=off"]
    done = account.run([*command, "postgres"], f"CREATE DATABASE {NAME}\n")
    # Single-user mode goes on after an error and still ends with status 0.
    if done.returncode != 0 or "ERROR:" in done.stdout + done.stderr:
        raise EmbeddedError(f"The database {NAME} could not be created in {data}:\n{_last(done.stdout + done.stderr)}")


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _last(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-12:])

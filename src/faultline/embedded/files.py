"""Where the files of an embedded server are. The promise: no permission of an existing folder is changed.

The named folder holds the locks, the logs and `server/`, the home of the data. If root starts the server and its user cannot
enter that folder, the home is /var/lib/faultline/NAME-HASH instead, and `where.txt` in the folder says so. The hash is that
of the folder's path: a copied or moved folder is noticed, and does not get the data of another.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from faultline.core.errors import ConfigError, EmbeddedError
from faultline.embedded import keeper
from faultline.embedded.account import Account, account_for
from faultline.embedded.copies import SYSTEM_FOLDER, system_folder

DEFAULT_FOLDER = Path(".faultline")

_SCHEME = "embedded:"
_WHERE = "where.txt"
_SOCKET_PATH_LIMIT = 100  # the kernel's is 108 on Linux and 104 on macOS
_SOCKET_FILE = "/.s.PGSQL.5432"


def is_embedded(dsn: str) -> bool:
    return dsn.startswith(_SCHEME)


def folder_of(dsn: str) -> Path:
    if not is_embedded(dsn):
        raise ConfigError(f"invalid embedded server {dsn!r}; write embedded: or embedded:FOLDER.")
    return _absolute(Path(dsn.removeprefix(_SCHEME) or DEFAULT_FOLDER))


def _absolute(folder: Path) -> Path:
    return Path(os.path.abspath(folder.expanduser()))  # noqa: PTH100 - absolute() would leave .. in it


@dataclass(frozen=True, slots=True)
class Files:
    folder: Path
    home: Path

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def users_lock(self) -> Path:
        return self.folder / keeper.USERS_LOCK

    @property
    def keeper_lock(self) -> Path:
        return self.folder / keeper.KEEPER_LOCK

    @property
    def start_lock(self) -> Path:
        return self.folder / keeper.START_LOCK

    @property
    def failure(self) -> Path:
        return self.folder / keeper.FAILURE

    @property
    def kept(self) -> Path:
        return self.folder / keeper.KEPT

    @property
    def server_log(self) -> Path:
        return self.folder / keeper.SERVER_LOG

    @property
    def keeper_log(self) -> Path:
        return self.folder / keeper.KEEPER_LOG

    @property
    def version(self) -> str | None:
        try:
            return (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return None


def files_of(folder: Path | None) -> Files:
    """The files as far as they are decided; creates nothing."""
    # Resolved: the path of its data identifies the server.
    real = _absolute(folder if folder is not None else DEFAULT_FOLDER).resolve()
    try:
        lines = (real / _WHERE).read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return Files(real, real / "server")
    except PermissionError as error:
        raise EmbeddedError(
            f"{real} belongs to another user: {error}. Run as that user, or choose another folder."
        ) from None
    home = _elsewhere(real)
    if str(home) not in lines:
        raise EmbeddedError(
            f"{real} was copied or moved: the data that its {_WHERE} names belongs to the old path. "
            f"Move it back, or remove {real / _WHERE} to start with an empty server."
        )
    return Files(real, home)


def make_folder(files: Files) -> None:
    """The folder of the locks. Made by root, others may pass through it (not list it): the server's user must."""
    try:
        files.folder.parent.mkdir(parents=True, exist_ok=True)
        files.folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            files.folder.chmod(0o711)
    except FileExistsError as error:
        if not files.folder.is_dir():
            raise EmbeddedError(f"{files.folder} is a file. Remove it, or choose another folder.") from error
    except OSError as error:
        raise EmbeddedError(f"The folder {files.folder} cannot be created: {error}. Choose another one.") from error


def choose_home(folder: Path) -> tuple[Files, Account]:
    """Decide where the data is and make its home. Called with `start.lock` held, so it is decided once."""
    files = files_of(folder)
    account = account_for(files.data)
    if files.home != files.folder / "server":
        system_folder()
    if account.switches and not account.can_enter(files.home.parent):
        if files.data.exists():
            raise EmbeddedError(
                f"The data is in {files.data}, which user {account.name} cannot enter. "
                f"Let that user enter {files.home.parent} and all folders above it, or choose another folder."
            )
        files = Files(files.folder, system_folder() / _elsewhere(files.folder).name)
        (files.folder / _WHERE).write_text(_explained(files.home, account))
        account = account_for(files.data)  # an earlier folder of the same path may have left data: keep its owner
    files.home.mkdir(mode=0o700, exist_ok=True)
    if account.switches and not files.data.exists():
        os.chown(files.home, account.uid, account.gid, follow_symlinks=False)
    return files, account


def _explained(home: Path, account: Account) -> str:
    return (
        "The data of this folder's PostgreSQL is in\n\n"
        f"{home}\n\n"
        f"because it runs as user {account.name}, who cannot enter this folder.\n"
        "To remove both: faultline db destroy\n"
    )


def _elsewhere(folder: Path) -> Path:
    name = re.sub(r"[^A-Za-z0-9]+", "-", folder.parent.name if folder.name == DEFAULT_FOLDER.name else folder.name)
    return SYSTEM_FOLDER / f"{name.strip('-')[:24] or 'server'}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"


def socket_folder(files: Files, account: Account) -> tuple[str, str]:
    """The folder for the socket; or "", and the folder in which to make a private one."""
    folder = files.home / "socket"
    # A comma would end the host name for libpq, and the folder for PostgreSQL.
    plain = re.fullmatch(r"[\w/.+=@~ -]+", str(folder)) is not None
    if plain and len(os.fsencode(folder) + _SOCKET_FILE.encode()) < _SOCKET_PATH_LIMIT:
        # Made by that user: a chown by root in that user's home could be redirected to any other file.
        made = account.run(["/bin/sh", "-c", 'test -d "$1" || mkdir -m 700 "$1"', "sh", str(folder)])
        if made.returncode != 0:
            raise EmbeddedError(f"The folder {folder} for the socket cannot be created: {made.stderr.strip()}")
        return str(folder), ""
    for temporary in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - a folder with a random name is made in it
        if len(temporary) < _SOCKET_PATH_LIMIT // 2 and account.can_enter(Path(temporary)):
            return "", temporary
    raise EmbeddedError(
        f"The path {folder} is too long for a socket, and user {account.name} can write to no temporary folder."
    )


def remove(files: Files) -> None:
    """Remove everything that the embedded server made for this folder, and the folder if it is empty then."""
    if files.home.exists():
        shutil.rmtree(files.home)
    names = (keeper.KEPT, keeper.FAILURE, _WHERE, keeper.KEEPER_LOCK, keeper.USERS_LOCK, keeper.START_LOCK)
    for path in (*(files.folder / name for name in names), *files.folder.glob("*.log")):
        path.unlink(missing_ok=True)
    if not any(files.folder.iterdir()):
        files.folder.rmdir()

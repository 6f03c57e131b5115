"""Copy binaries for a user who cannot reach the original. The promise: a copy is complete or missing, and belongs to root.

The user that the server runs as cannot enter a venv below /root, and no permission is changed for that. So the installation
is copied once to a folder that everybody can read. A running server holds a shared lock on its copy, so that `remove_unused`
does not remove it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from faultline.core.errors import EmbeddedError
from faultline.embedded import locks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.embedded.account import Account
    from faultline.embedded.binaries import Binaries

SYSTEM_FOLDER = Path("/var/lib/faultline")

_DRAFT = ".copying-"
_WAIT = 120.0
_NOT_NEEDED = shutil.ignore_patterns("include", "*.a", "__pycache__")


def system_folder() -> Path:
    """The folder for files of root's servers: everybody can read it, only root can change it."""
    try:
        SYSTEM_FOLDER.mkdir(mode=0o755)
        SYSTEM_FOLDER.chmod(0o755)  # just created, so this only undoes the umask
    except FileExistsError:
        pass
    except OSError as error:
        raise EmbeddedError(
            f"{SYSTEM_FOLDER} cannot be created: {error}. Choose a folder that every user can enter."
        ) from error
    found = SYSTEM_FOLDER.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
        raise EmbeddedError(f"{SYSTEM_FOLDER} must be a folder that only root can write to. Remove or repair it.")
    return SYSTEM_FOLDER


@contextmanager
def usable_by(account: Account, binaries: Binaries) -> Iterator[Binaries]:
    """These binaries if that user can run them, else a copy, which is kept for the duration of the block."""
    if not account.switches or account.can_run(binaries.program("postgres")):
        yield binaries
        return
    with _only_one_at_a_time():
        copy = _copied(binaries)
        hold = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
        locks.try_lock(hold, locks.SHARED)
    try:
        found = replace(binaries, folder=copy / _layout(binaries.folder)[0] / "bin", copy=copy)
        if not account.can_run(found.program("postgres")):
            raise EmbeddedError(
                f"User {account.name} can run postgres neither in {binaries.folder} nor as a copy in {found.folder}. "
                "Install PostgreSQL for all users (apt-get install postgresql), or run as a user other than root."
            )
        yield found
    finally:
        os.close(hold)


def remove_unused() -> None:
    """Remove every copy that no server uses; it is copied again when needed."""
    if not SYSTEM_FOLDER.is_dir():
        return
    with _only_one_at_a_time():
        for copy in SYSTEM_FOLDER.glob("postgresql-*"):
            hold = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if locks.try_lock(hold, locks.EXCLUSIVE):
                    shutil.rmtree(copy)
            finally:
                os.close(hold)


@contextmanager
def _only_one_at_a_time() -> Iterator[None]:
    lock = os.open(system_folder(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not locks.wait_until(lambda: locks.try_lock(lock, locks.EXCLUSIVE), _WAIT):
            raise EmbeddedError(f"Another program has been copying PostgreSQL to {SYSTEM_FOLDER} for {_WAIT:.0f} s.")
        yield
    finally:
        os.close(lock)


def _layout(folder: Path) -> tuple[Path, dict[Path, Path]]:
    """Where the installation is in the copy, and which folder is copied to which name there.

    A wheel's programs look for their libraries in `../../../PACKAGE.libs`, so that relative path must stay.
    """
    root = folder.parent
    libraries = root.parent.with_name(root.parent.name + ".libs")
    if libraries.is_dir():
        inside = Path(root.parent.name) / root.name
        return inside, {root: inside, libraries: Path(libraries.name)}
    return Path(root.name), {root: Path(root.name)}


def _copied(binaries: Binaries) -> Path:
    folders = _layout(binaries.folder)[1]
    final = SYSTEM_FOLDER / f"postgresql-{binaries.version}-{_fingerprint(binaries, folders)}"
    for left in SYSTEM_FOLDER.glob(_DRAFT + "*"):  # of a killed program: this one holds the lock
        shutil.rmtree(left)
    if final.is_dir():
        return final
    draft = SYSTEM_FOLDER / (_DRAFT + secrets.token_hex(8))
    try:
        for source, name in folders.items():
            shutil.copytree(source, draft / name, ignore=_NOT_NEEDED)
        _readable_by_all(draft)
        draft.rename(final)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise EmbeddedError(f"PostgreSQL could not be copied from {binaries.folder} to {final}: {error}") from error
    return final


def _fingerprint(binaries: Binaries, folders: dict[Path, Path]) -> str:
    """The same for the same build wherever it is installed; it changes with an upgrade or a new extension."""
    digest = hashlib.sha256(Path(binaries.program("postgres")).read_bytes())
    for source, name in folders.items():
        for path in sorted(source.rglob("*")):
            if path.is_file():
                digest.update(f"{name / path.relative_to(source)} {path.stat().st_size}\n".encode())
    return digest.hexdigest()[:12]


def _readable_by_all(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        runs = path.is_dir() or path.stat().st_mode & 0o111
        path.chmod(0o755 if runs else 0o644)

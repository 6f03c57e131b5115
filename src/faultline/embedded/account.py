"""The user that the server runs as. The promise: it creates no account, and tests what that user can reach.

PostgreSQL refuses to run as root. Started by root, it runs as an existing user without privileges. Mode bits do not tell
whether that user can enter a folder (there are access lists, mount options and more), so a process of that user tries.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core.errors import EmbeddedError
from faultline.embedded.keeper import environment

if TYPE_CHECKING:
    from pathlib import Path

UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int

    @property
    def switches(self) -> bool:
        """Whether this is another user than the current one."""
        return self.uid != os.geteuid()

    def run(self, command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
        # cwd: that user may be unable to enter the current folder, and PostgreSQL's programs refuse to run there.
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd="/",
            env=environment(),
            user=self.uid if self.switches else None,
            group=self.gid if self.switches else None,
            extra_groups=[] if self.switches else None,
        )

    def can_enter(self, folder: Path) -> bool:
        # The dot tests the right to enter the folder itself, not only the path to it.
        return self.run(["/bin/sh", "-c", 'test -d "$1/."', "sh", str(folder)]).returncode == 0

    def can_run(self, program: str) -> bool:
        """Runs it, because its libraries must be readable too."""
        try:
            return self.run([program, "-V"]).returncode == 0
        except OSError:
            return False


def account_for(data: Path) -> Account:
    """The user for the server of that data folder: its owner, else the current user, or for root another one."""
    try:
        owner = data.stat().st_uid
    except FileNotFoundError:
        owner = os.geteuid()
    except PermissionError as error:
        raise EmbeddedError(
            f"{data} belongs to another user: {error}. Run as that user, or choose another folder."
        ) from None
    if os.geteuid() != 0 and owner != os.geteuid():
        raise EmbeddedError(
            f"{data} belongs to user {owner}, but this is user {os.geteuid()}. Run as that user, or choose another folder."
        )
    if owner != 0:
        return _described(owner)
    for name in UNPRIVILEGED:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(found.pw_name, found.pw_uid, found.pw_gid)
    raise EmbeddedError(
        f"PostgreSQL refuses to run as root, and there is no user {' or '.join(UNPRIVILEGED)} to run it as. "
        "Run this program as a user other than root, or create a user `postgres`."
    )


def _described(uid: int) -> Account:
    try:
        found = pwd.getpwuid(uid)
    except KeyError:  # a container run with a bare number as its user
        return Account(str(uid), uid, os.getegid())
    return Account(found.pw_name, uid, found.pw_gid)

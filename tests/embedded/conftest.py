"""The folders embedded servers are tested in. The promise: every test leaves neither a process nor a file."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faultline import embedded
from tests.embedded.programs import FAST, left_running

if TYPE_CHECKING:
    from collections.abc import Iterator


def _made_for_everybody() -> Path:
    """A folder everybody may enter; pytest's own are for their owner only, and not for the server's user."""
    root = Path(tempfile.mkdtemp(prefix="fltest-", dir="/tmp"))  # the system's, not a TMPDIR of our own
    root.chmod(0o755)
    return root


@pytest.fixture
def open_folder() -> Iterator[Path]:
    root = _made_for_everybody()
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    """A server's folder with its data; a copy of it takes a tenth of the time that initdb takes."""
    root = _made_for_everybody()
    embedded.join(root / "db", settings=FAST).close()
    yield root / "db"
    shutil.rmtree(root)


@pytest.fixture
def new_folder(open_folder: Path) -> Iterator[Path]:
    """The folder of a server that never ran."""
    folder = open_folder / "db"
    yield folder
    embedded.destroy(folder)
    assert left_running(folder) == []
    assert not folder.exists()


@pytest.fixture
def folder(new_folder: Path, template: Path) -> Path:
    """The folder of a server that ran before."""
    new_folder.mkdir()
    new_folder.chmod(template.stat().st_mode & 0o777)
    subprocess.run(["cp", "-a", template / "server", new_folder / "server"], check=True)
    return new_folder

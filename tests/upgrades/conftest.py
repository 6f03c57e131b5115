from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.upgrades.builds import previous_wheel, unpack

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of the previous build."""
    wheel = previous_wheel(tmp_path_factory.mktemp("wheel"))
    return unpack(wheel, tmp_path_factory.mktemp("previous"))

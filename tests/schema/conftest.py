"""The protocol is SQL, so its tests run on every kind of server that is here: the default one and the system's 15."""

from __future__ import annotations

import pytest

from tests.conftest import SYSTEM_15

_without_15 = pytest.mark.skipif(not (SYSTEM_15 / "postgres").exists(), reason="no PostgreSQL 15 on this machine")


@pytest.fixture(params=["default", pytest.param("system-15", marks=_without_15)])
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)

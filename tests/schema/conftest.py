"""The protocol is SQL, so its tests run on every supported version of PostgreSQL that is here.

All of them run on the default server and on the oldest version, and most on the versions between.
"""

from __future__ import annotations

import pytest

from tests import servers

OLDEST, *BETWEEN = servers.SUPPORTED[:-1]
ON_ALL_VERSIONS = {"test_versions", "test_probes", "test_model", "test_guards", "test_epochs"}


def servers_for(module: str) -> list[str]:
    """The servers that the tests of a module run on."""
    versions = [OLDEST, *(BETWEEN if module in ON_ALL_VERSIONS else [])]
    return [servers.DEFAULT, *map(servers.name_of, versions)]


def _param(name: str) -> object:
    if name == servers.DEFAULT:
        return name
    marks = [pytest.mark.version]
    if name not in servers.programs():
        marks.append(pytest.mark.skip(reason=servers.missing(int(name.rpartition("-")[2]))))
    return pytest.param(name, marks=marks)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        metafunc.parametrize("server", [_param(name) for name in servers_for(module)])

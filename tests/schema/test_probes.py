"""Every promise of the protocol, on every version of PostgreSQL that is here.

The promises are the probes that `faultline prove` shows its mutants to; a probe says what it saw instead. What follows from
chance, from the size of tables or from the definitions alone has tests of its own beside this one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg
import pytest

from faultline_proof.probes import PROBES
from faultline_proof.prove import ProbeDatabase
from faultline_proof.sessions import STAGE
from tests.conftest import clone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faultline_proof.probes import Probe
    from tests.conftest import Servers


@pytest.fixture(scope="session")
def stage_on(servers: Servers) -> Iterator[Callable[[str], ProbeDatabase]]:
    """One stage on each server for all probes that this process plays: to clear it is quicker than to make another."""
    with contextlib.ExitStack() as stack:
        stages: dict[str, ProbeDatabase] = {}

        def find(server: str) -> ProbeDatabase:
            if server not in stages:
                template_dsn = stack.enter_context(clone(servers.template(server)))
                with psycopg.connect(template_dsn, autocommit=True) as connection:
                    connection.execute(STAGE)
                stages[server] = stack.enter_context(ProbeDatabase(template_dsn))
            return stages[server]

        yield find


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name.replace(" ", "_"))
def test_probe(stage_on: Callable[[str], ProbeDatabase], server: str, probe: Probe) -> None:
    stage_on(server).play_patiently(probe)

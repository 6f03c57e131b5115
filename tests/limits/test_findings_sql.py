"""What attacks on the first draft of limits found stays mended. The stories are probes: mutants are shown to them too."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import psycopg
import pytest

from faultline_proof.probes import PROBES
from faultline_proof.prove import ProbeDatabase
from faultline_proof.sessions import STAGE
from tests.conftest import clone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline_proof.probes import Probe
    from tests.conftest import Servers

FINDINGS = [probe for probe in PROBES if probe.name.startswith("finding ")]


@pytest.fixture(scope="module")
def stage(servers: Servers) -> Iterator[ProbeDatabase]:
    with contextlib.ExitStack() as stack:
        template_dsn = stack.enter_context(clone(servers.template("default")))
        with psycopg.connect(template_dsn, autocommit=True) as connection:
            connection.execute(STAGE)
        yield stack.enter_context(ProbeDatabase(template_dsn))


@pytest.mark.parametrize("probe", FINDINGS, ids=lambda probe: probe.name.removeprefix("finding ").replace(" ", "_"))
def test(stage: ProbeDatabase, probe: Probe) -> None:
    stage.play_patiently(probe)


def test_every_finding_about_sql_has_its_story() -> None:
    told = {int(number) for probe in FINDINGS for number in re.findall(r"^finding (\d+)", probe.name)}

    # 9 and 25 to 28 are about schedules, 22 about unique jobs.
    assert {*range(1, 9), 10, 11, 12, 13, 15, *range(16, 22), 23, 24} <= told

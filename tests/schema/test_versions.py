"""Every supported version of PostgreSQL is tested: those that are not on this machine are told of, not passed over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from faultline.core.model import JobState
from tests import servers
from tests.schema.conftest import servers_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver

ROOT = Path(__file__).parents[2]


def test_a_job_lives_on_this_version(queue: Driver, server: str, record_property: Callable[[str, object], None]) -> None:
    """The server is the version that it is taken for: a wrong folder would test another one twice."""
    version = queue.connection.info.server_version // 10000
    job = queue.enqueue()
    queue.complete(queue.claim_one())

    assert queue.state(job) is JobState.SUCCEEDED
    assert server in {servers.DEFAULT, servers.name_of(version)}
    record_property("figure", f"the protocol's tests: run on PostgreSQL {version}")


def test_every_supported_version_is_tested_and_told_of() -> None:
    tested = {servers.name_of(servers.NEWEST), *servers_for("test_versions")} - {servers.DEFAULT}

    assert tested == {servers.name_of(version) for version in servers.SUPPORTED}
    for file in ("README.md", "docs/how-to/deployment.md", "docs/explanation/guarantees.md"):
        supported = f"PostgreSQL {servers.SUPPORTED[0]} to {servers.SUPPORTED[-1]}"
        assert supported in (ROOT / file).read_text(), f"{file} does not say that {supported} are supported"

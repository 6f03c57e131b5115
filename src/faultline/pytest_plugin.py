"""Fixtures for pytest, which finds them when Faultline is installed. Nothing is imported before a test asks for one.

    def test_an_order_is_shipped(faultline):
        shop.order("lamp")

        assert faultline.drain().succeeded == 1

- `faultline`: the application under test, on a database of the test's own: `drain()`, `time`, `jobs`, `assert_enqueued()`.
- `faultline_app`: the application. Override it in conftest.py with one that returns yours.
- `faultline_database`: the DSN of a migrated database of the test's own.
- `faultline_server`: the DSN of the server where databases are made. Default: FAULTLINE_TEST_DSN, else as for a program.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.app.application import Faultline
    from faultline.testing.fixture import JobsUnderTest


@pytest.fixture(scope="session")
def faultline_server() -> Iterator[str]:
    """The DSN of the server for tests. Databases are made there and dropped again; none that exists is touched."""
    from faultline.app.application import Faultline  # noqa: PLC0415 - see above

    with Faultline(os.environ.get("FAULTLINE_TEST_DSN") or None) as app:
        yield app.dsn


@pytest.fixture(scope="session")
def _faultline_template(faultline_server: str) -> Iterator[str]:
    """A migrated database that is only ever copied."""
    from faultline.store import scratch  # noqa: PLC0415

    with scratch.database(faultline_server) as template:
        yield template


@pytest.fixture
def faultline_database(faultline_server: str, _faultline_template: str) -> Iterator[str]:
    """The DSN of a migrated database of this test's own."""
    from faultline.store import scratch  # noqa: PLC0415

    with scratch.database(faultline_server, template=_faultline_template) as dsn:
        yield dsn


@pytest.fixture
def faultline_app(faultline_database: str) -> Faultline:
    """The application under test. Override it in conftest.py: it returns yours, whatever database that names."""
    from faultline.app.application import Faultline  # noqa: PLC0415

    return Faultline(faultline_database)


@pytest.fixture
def faultline(faultline_app: Faultline, faultline_database: str) -> Iterator[JobsUnderTest]:
    """The application under test, on a database of this test's own until the test ends."""
    from faultline.testing.fixture import JobsUnderTest  # noqa: PLC0415

    with JobsUnderTest(faultline_app, faultline_database) as jobs:
        yield jobs

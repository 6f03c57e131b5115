"""A heartbeat whose clock is moved by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.worker.beating import Time, heartbeat_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.worker.lease.heartbeat import Heartbeat


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def heartbeat(dsn: str, time: Time) -> Iterator[Heartbeat]:
    beating = heartbeat_on(dsn, time)
    yield beating
    asyncio.run(beating.stop())

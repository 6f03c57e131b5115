"""What several tests of the runtime look at: the log, and a heartbeat whose clock is moved by hand."""

from __future__ import annotations

import asyncio
import io
import logging
from typing import TYPE_CHECKING

import pytest

from faultline import log_events
from tests.runtime.beating import Time, heartbeat_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.runtime.heartbeat import Heartbeat


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = log_events(stream)
    yield stream
    logging.getLogger("faultline").removeHandler(handler)
    logging.getLogger("faultline").setLevel(logging.NOTSET)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def heartbeat(dsn: str, time: Time) -> Iterator[Heartbeat]:
    beating = heartbeat_on(dsn, time)
    yield beating
    asyncio.run(beating.stop())

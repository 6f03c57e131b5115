from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest

from faultline import log_events
from faultline.core import events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline import Faultline


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = log_events(stream)
    yield stream
    logging.getLogger("faultline").removeHandler(handler)
    logging.getLogger("faultline").setLevel(logging.NOTSET)


def test_an_event_is_one_json_line_with_its_fields(log: io.StringIO) -> None:
    events.emit("stale_write_blocked", job_id="j", stale_token=1, current_token=2, reason="token_mismatch")

    line = json.loads(log.getvalue())
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "level": "info",
        "event": "stale_write_blocked",
        "job_id": "j",
        "stale_token": 1,
        "current_token": 2,
        "reason": "token_mismatch",
    }


def test_events_are_silent_unless_configured(capfd: pytest.CaptureFixture[str]) -> None:
    events.emit("lease_acquired", job_id="j", token=1, level=logging.ERROR)

    assert capfd.readouterr() == ("", "")


def test_a_plain_record_of_the_package_becomes_a_json_line_too(log: io.StringIO) -> None:
    logging.getLogger("faultline.anything").warning("two\nlines with %s", '"quotes"')

    (line,) = log.getvalue().splitlines()
    assert json.loads(line)["message"] == 'two\nlines with "quotes"'


def test_argument_values_are_never_logged(app: Faultline, log: io.StringIO) -> None:
    logging.getLogger("faultline").setLevel(logging.DEBUG)

    @app.task
    def charge(card: str) -> None: ...

    handle = charge.options(idempotency_key="k").enqueue("4111-1111")

    assert json.loads(log.getvalue())["job_id"] == str(handle.id)
    assert "4111" not in log.getvalue()

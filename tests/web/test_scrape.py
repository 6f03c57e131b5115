"""`/metrics`: for keys that may read everything, and at a port of its own for whoever can reach that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from faultline.web.server.server import server
from tests.integrations.test_exposition import number, samples
from tests.waiting import free_port
from tests.web.conftest import QUICK, Api, refused, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver


def test_it_tells_what_was_submitted_here_and_what_waits(api: Api) -> None:
    api.submit(queue="mail")
    api.post("/jobs/batch", json={"jobs": [{"task": "t", "queue": "mail"}, {"task": "t", "queue": "bills"}]})
    for _ in range(2):
        api.http.post("/api/v1/jobs", json={"task": "t", "queue": "once"}, headers={"Idempotency-Key": "k"})

    found = samples(api.http.get("/metrics").content)

    counted = [number(found, "faultline_jobs_enqueued_total", queue=name) for name in ("mail", "bills", "once")]
    assert counted == [2, 1, 1]
    assert number(found, "faultline_queue_workers_alive") == 0


def test_a_key_is_needed_that_may_read_all_queues(caller: Callable[..., Api], stranger: Api) -> None:
    refused(caller("enqueue").http.get("/metrics"), 403, "Forbidden")
    refused(caller("read", queues=["mail"]).http.get("/metrics"), 403, "QueueForbidden")
    refused(stranger.http.get("/metrics"), 401, "Unauthorized")
    assert caller("read").http.get("/metrics").status_code == 200


def test_a_port_of_its_own_asks_for_no_key(dsn: str, db: Driver, caller: Callable[..., Api]) -> None:
    assert caller("read").key is not None  # so keys are asked for everywhere else
    port = free_port()

    with running(dsn, ready=server(dsn, port=0, limits=QUICK, metrics_at=("127.0.0.1", port))):
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", verify=False, timeout=30)  # noqa: S501 - plain HTTP

    assert number(samples(answer.content), "faultline_queue_workers_alive") == 0

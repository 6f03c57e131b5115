"""What broke steps and their results: another order in a later run, repeated effects, forgotten failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from faultline import Faultline, Job, JobFailed, Retries, values
from faultline.store import jsontext
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, ended, job_of, journal


@dataclass
class Receipt:
    id: int


@pytest.mark.parametrize(
    "given",
    [
        {"url": "u", "id": 1, "ag": 3, "gold": {"bb": 1, "é": 2, "a": 3, "ccc": 4}},
        [1e15, 1e16, 1.5e16, -1.7e18, 1.2345678901234567e19, 1.8446744073709552e19, 1e22, -1e19, 1e300, 5e-324, 1.5e-7],
        [0.0, -0.0, 1.0, 0.1, -3, 2**63, 2**64 - 1, -(2**63), True, None, "", [], {}],
    ],
)
def test_a_result_is_returned_as_a_later_run_reads_it(app: Faultline, given: Any) -> None:
    text = jsontext.encode(given, "value")
    with psycopg.connect(app.dsn) as connection:
        [stored] = connection.execute("select %s::jsonb::text", (text,)).fetchone() or [""]

    returned = values.as_stored(jsontext.decode(text))

    assert repr(returned) == repr(jsontext.decode(stored))
    assert repr(values.as_stored(returned)) == repr(returned)
    assert values.digest(given) == values.digest(returned)


@KINDS
def test_a_program_maps_over_what_a_step_returned(app: Faultline, kind: str) -> None:
    @app.step
    def fetch() -> list[dict[str, Any]]:
        return [{"url": "u1", "id": 1, "at": 1.7e18}, {"url": "u2", "id": 2, "at": -0.0}]

    @app.task
    async def child(doc: dict[str, Any]) -> int:
        return int(doc["id"])

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        found = await job.do(fetch)
        return await job.map(child, found)

    handle = program.enqueue()

    assert ended(app, handle) == [1, 2]
    assert journal(app, handle, "program_changed") == []


@KINDS
def test_a_program_goes_through_a_dict_in_the_same_order_in_every_run(app: Faultline, kind: str) -> None:
    @app.step
    def prices() -> dict[str, Any]:
        return {"tin": 1e16, "gold": 2, "ag": 3}

    @app.step
    def tell(name: str, price: Any) -> str:
        return f"{name}: {price!r}"

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        named = await job.step("prices", prices)
        told = []
        for name, price in [*(await job.do(prices)).items(), *named.items()]:
            told.append(await job.do(tell, name, price))
        await job.sleep(0.01)
        return told

    assert ended(app, program.enqueue()) == 2 * ["ag: 3", "tin: 10000000000000000", "gold: 2"]


@KINDS
@pytest.mark.parametrize("fault", ["no annotation", "other annotation", "not JSON", "too large"])
@pytest.mark.parametrize("how", ["step", "atomic"])
def test_a_step_whose_result_cannot_be_kept_fails_its_job_at_once(app: Faultline, kind: str, fault: str, how: str) -> None:
    ran: list[str] = []
    results: dict[str, Any] = {
        "no annotation": Receipt(1), "other annotation": "17", "not JSON": {1, 2}, "too large": "x" * 70_000_000,
    }  # fmt: skip

    def unknown(*_: Any):  # type: ignore[no-untyped-def]  # noqa: ANN202 - the fault
        ran.append(fault)
        return results[fault]

    def number(*_: Any) -> int:
        ran.append(fault)
        return results[fault]  # type: ignore[no-any-return]

    charge: Any = number if fault == "other annotation" else unknown
    step = app.step(retries=Retries(3, first=0))(charge)

    @task_of(app, kind, max_attempts=3, backoff=lambda _: 0)
    async def program(job: Job) -> Any:
        try:
            return await job.do(step) if how == "step" else await job.atomic("charge", charge)
        except Exception:  # noqa: BLE001 - as careless code does
            return "swallowed"

    handle = program.enqueue()
    error = ended(app, handle)

    assert isinstance(error, JobFailed)
    assert "charge" in str(error) or "unknown" in str(error) or "number" in str(error)
    assert ran == [fault]
    assert job_of(app, handle)["attempt"] == 1
    assert calls(app, handle) == {}

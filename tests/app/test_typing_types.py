"""Type checkers know what tasks take and return, and what retry rules are. Asked of mypy and of pyright, both strict."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.test_typing import PROGRAM as OF_TASKS
from tests.app.test_typing import ROOT, checked
from tests.flow.test_types import PROGRAM as OF_FLOWS

pytestmark = pytest.mark.long

OF_TYPES = """
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Literal, NamedTuple, NewType, TypedDict, assert_type
from uuid import UUID
import msgspec
import pydantic
from faultline import Backoff, Fail, Faultline, Job, JobHandle, Retry

app = Faultline("x")
OrderId = NewType("OrderId", UUID)

class Size(Enum):
    SMALL = "small"

class Place(NamedTuple):
    x: int

class Note(TypedDict):
    at: datetime

class Model(pydantic.BaseModel):
    at: datetime

class Struct(msgspec.Struct):
    at: datetime

@dataclass
class Order:
    id: OrderId
    size: Size

class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

app.type(Money, store=lambda money: money.cents, read=Money)

class RateLimited(Exception): ...

@app.task(retry_on=(RateLimited, TimeoutError), give_up_on=ValueError, backoff=Backoff.exponential(most=timedelta(hours=1)))
async def ship(
    job: Job, order: Order, by: Literal["air", "sea"], tags: set[str], price: Decimal = Decimal(1)
) -> tuple[OrderId, date]:
    return order.id, date(2026, 1, 1)

@app.task(backoff=lambda attempt: timedelta(minutes=attempt))
def note(model: Model, struct: Struct, notes: dict[Place, Note] | None) -> Money | Fail | Retry:
    return Fail("no")

@app.task
async def never(n: int) -> Fail | None:
    raise Fail(ValueError(n))

async def good(job: Job, order: Order, model: Model, struct: Struct) -> None:
    assert_type(ship.enqueue(order, "air", {"gift"}), JobHandle[tuple[OrderId, date]])
    assert_type(ship.enqueue(order, "sea", set()).result(), tuple[OrderId, date])
    assert_type(await (await ship.aenqueue(order, by="air", tags=set(), price=Decimal(3))).aresult(), tuple[OrderId, date])
    assert_type(note.enqueue(model, struct, {Place(1): {"at": datetime.now()}}).result(), Money)
    assert_type(never.enqueue(1), JobHandle[None])
    assert_type(await job.call(note, model, struct, None), Money)
    assert_type(Backoff.fixed(60)(1), float)

def bad(order: Order, model: Model, struct: Struct) -> None:
    ship.enqueue(order, "rail", set())  # refused: no such way
    ship.enqueue(order, "air", ["gift"])  # refused: a list for a set
    ship.enqueue({"id": 1}, "air", set())  # refused: a dict for Order
    ship.enqueue(order, "air", set(), price=1.5)  # refused: float for Decimal
    x: date = ship.enqueue(order, "air", set()).result()  # refused: a tuple
    note.enqueue(struct, struct, None)  # refused: another model
    app.type(Money, store=lambda money: money.euros, read=Money)  # refused: no such field
    app.type(Money, store=lambda money: money.cents, read=Order)  # refused: another class
    app.task(backoff=5)  # refused: a number
    app.task(backoff=lambda: 5)  # refused: no parameter
    app.task(retry_on="RateLimited")  # refused: a text
    app.task(give_up_on=(ValueError("x"),))  # refused: an instance
    Backoff.fixed("60")  # refused: a text
    Fail(404)  # refused: a number
"""

PROGRAMS = {"tasks": OF_TASKS, "flows": OF_FLOWS, "types": OF_TYPES}
#: Where pyright says `Unknown`, which is as good as Any, and mypy knows more; and what only it calls an error.
LESS = ("JobHandle[Never]", 'saga.do(count, "x", undo=uncount), int)')
RULES = ("reportUnusedVariable", "reportUnusedCallResult")


def refusals(text: str) -> set[int]:
    return {n for n, line in enumerate(text.splitlines(), start=1) if "# refused" in line}


def test_mypy_knows_the_types_of_arguments_and_results_and_refuses_wrong_ones(tmp_path: Path) -> None:
    refused, said = checked(tmp_path, OF_TYPES)

    assert refused == refusals(OF_TYPES), said


@pytest.mark.parametrize("name", PROGRAMS)
def test_pyright_accepts_and_refuses_the_same(tmp_path: Path, name: str) -> None:
    text = PROGRAMS[name]
    lines = text.splitlines()
    spared = {n for n, line in enumerate(lines, start=1) if any(part in line for part in LESS)}

    refused, said = asked_of_pyright(tmp_path, text)

    assert refused - spared == refusals(text), said


def asked_of_pyright(folder: Path, text: str) -> tuple[set[int], str]:
    """The lines that pyright refuses in strict mode, and what it says."""
    command = (
        [sys.executable, "-m", "basedpyright"] if importlib.util.find_spec("basedpyright") else [shutil.which("pyright")]
    )
    if command[0] is None:
        pytest.skip("needs pyright: pip install basedpyright, which brings its own node")
    (folder / "program.py").write_text(text)
    site = Path(sys.prefix)
    settings = {
        "typeCheckingMode": "strict", "venvPath": str(site.parent), "venv": site.name, "extraPaths": [str(ROOT / "src")],
        "include": ["program.py"],
    }  # fmt: skip
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    ran = subprocess.run(
        [*command, "--project", str(folder), "--outputjson"], capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    found = [
        one
        for one in json.loads(ran.stdout)["generalDiagnostics"]
        if one["severity"] == "error" and one.get("rule") not in RULES
    ]
    said = [f"{one['range']['start']['line'] + 1}: {one['message']}" for one in found]
    return {one["range"]["start"]["line"] + 1 for one in found}, "\n".join(said)

"""Type checkers know what tasks take and return, and what retry rules are. Asked of mypy and of pyright, both strict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app import typed_pages
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

#: What mypy does not know: see `Returned`.
OF_CALLS = """
from typing import Any, assert_type
from faultline import BlockingJob, Cancel, Faultline, JobHandle, Task

app = Faultline("x")

@app.task
def ship(order_id: int) -> str:
    return ""

@app.task(executor="process")
def render(page: int) -> dict[str, Any]:
    return {}

@app.task(max_attempts=5)
def count(job: BlockingJob, n: int) -> list[int] | Cancel:
    return Cancel()

@app.task
def look(n: int) -> Any:
    return n

def good(job: BlockingJob) -> None:
    assert_type(ship(42), str)
    assert_type(ship.options(delay=60)(42), str)
    assert_type(render(1), dict[str, Any])
    assert_type(look(1), Any)
    counted = count(job, 1)
    if isinstance(counted, list):
        assert_type(counted, list[int])
    kept: Task[[int], str] = ship
    assert_type(kept.enqueue(order_id=42), JobHandle[str])
    assert_type(count.enqueue(1), JobHandle[list[int]])

def bad(job: BlockingJob) -> None:
    price: int = ship(42)  # refused: it returns str
    count(job, 1).sort()  # refused: it may be an outcome
    look.enqueue("1")  # refused: str for int
"""

OF_EXAMPLES = """
from typing import assert_type
import sqlalchemy.orm
from sqlalchemy.ext.asyncio import AsyncSession
from examples import shop, shop_flask
from examples.transfer import transfer
from faultline import Job, JobHandle

async def good(job: Job, session: AsyncSession, blocking: sqlalchemy.orm.Session) -> None:
    assert_type(await shop.ship.using(session).aenqueue(7), JobHandle[str])
    assert_type(shop_flask.ship.using(blocking).enqueue("lamp"), JobHandle[None])
    assert_type(transfer.enqueue("ada", "bob", 3).result(), int)
    assert_type(await job.call(transfer, "ada", "bob", amount=3), int)

async def bad(job: Job, session: AsyncSession, blocking: sqlalchemy.orm.Session) -> None:
    transfer.enqueue("ada", "bob", "3")  # refused: str for int
    transfer.enqueue("ada", "bob")  # refused: no amount
    await shop.ship.using(session).aenqueue("7")  # refused: str for int
    shop_flask.ship.using(blocking).enqueue(7)  # refused: int for str
    shop_flask.ship.using(blocking).enqueue("lamp", 2)  # refused: too many
    parcel: int = shop.ship.enqueue(7).result()  # refused: a result that is str
    transfer.enqueue("ada", "bob", 3).result().upper()  # refused: a result that is int
    (await job.call(transfer, "ada", "bob", 3)).upper()  # refused: likewise
    await job.call(transfer, "ada", 3, "bob")  # refused: in another order
"""

PROGRAMS = {"tasks": OF_TASKS, "flows": OF_FLOWS, "types": OF_TYPES, "of_examples": OF_EXAMPLES, "calls": OF_CALLS}
#: Where pyright says `Unknown`, which is as good as Any, and mypy knows more; and what only it calls an error.
LESS = ("JobHandle[Never]", 'saga.do(count, "x", undo=uncount), int)')
#: Of wrong programs, which are not used; and of pages, which repeat an import.
RULES = ("reportUnusedVariable", "reportUnusedCallResult", "reportDuplicateImport")
#: Django has no types of its own: pyright would know nothing there.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py"))


def refusals(text: str) -> set[int]:
    return {n for n, line in enumerate(text.splitlines(), start=1) if "# refused" in line}


@pytest.mark.parametrize("name", ["types", "of_examples"])
def test_mypy_knows_the_types_of_arguments_and_results_and_refuses_wrong_ones(tmp_path: Path, name: str) -> None:
    refused, said = checked(tmp_path, PROGRAMS[name])

    assert refused == refusals(PROGRAMS[name]), said


def test_mypy_accepts_the_programs_of_the_how_to_pages(tmp_path: Path) -> None:
    paths = typed_pages.written(tmp_path)

    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, paths)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip

    assert len(paths) > 40
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def test_pyright_accepts_and_refuses_the_same_and_accepts_examples_and_pages(tmp_path: Path) -> None:
    wanted: dict[str, set[int]] = {path.name: set() for path in (*typed_pages.written(tmp_path), *EXAMPLES)}
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}_program.py").write_text(text)
        wanted[f"{name}_program.py"] = refusals(text)

    refused = asked_of_pyright(tmp_path, EXAMPLES)

    assert [said for (name, line), said in refused.items() if line not in wanted[name]] == []
    assert [(name, line) for name, lines in wanted.items() for line in lines if (name, line) not in refused] == []


def asked_of_pyright(folder: Path, others: list[Path]) -> dict[tuple[str, int], str]:
    """What pyright says in strict mode of the lines that it refuses, by file and line. One run: to start takes longest."""
    site = Path(sys.prefix)
    settings = {
        "typeCheckingMode": "strict", "venvPath": str(site.parent), "venv": site.name,
        "extraPaths": [str(ROOT / "src"), str(ROOT)], "include": [str(folder), *map(str, others)],
    }  # fmt: skip
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    ran = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--project", str(folder), "--outputjson"],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["summary"]["filesAnalyzed"] >= len(others)
    refused: dict[tuple[str, int], str] = {}
    for one in answer["generalDiagnostics"]:
        path, line = Path(one["file"]), one["range"]["start"]["line"] + 1
        shown = path.read_text().splitlines()[line - 1]
        spared = one.get("rule") in RULES or any(part in shown for part in LESS)
        if one["severity"] == "error" and not spared:
            refused[path.name, line] = f"{path.name}:{line}: {one['message']}"
    return refused

"""What `faultline` promises to programs: what a signature mentions can be imported, and each parameter is explained."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pytest

import faultline
import faultline.testing
from faultline.attempt.options import Options, TaskOptions
from faultline.core import errors
from faultline.core.settings import WorkerOptions
from faultline.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
#: Public for Faultline's own modules, and no promise to other programs.
INNER: set[str] = runpy.run_path(str(ROOT / "docs/conf.py"))["INNER"]
#: Made by Faultline, never by a program.
GIVEN = {
    "Attempt", "BatchDecorator", "BlockingCall", "BlockingJob", "BlockingSaga", "Call", "CallableTask", "Job", "JobHandle",
    "DeferredCalls", "OneArgumentTask", "Saga", "Step", "StepDecorator", "Flow", "JoinedApp", "JoinedTask", "FlowHandle",
    "FlowJob", "Stream", "StreamReader", "Limits", "QueueResource", "ScheduleLine", "Schedules", "TickLine",
    "Upstream", "Task", "TaskDecorator", "Transaction", "BlockingTransaction", "JoinedTransaction", "Worker",
}  # fmt: skip
#: Of these, programs may use what the reference names.
NAMED = dict(
    re.findall(r"autoclass:: faultline\.(\w+)\n   :members: (.+)\n", (ROOT / "docs/reference/python.md").read_text())
)
PUBLIC = {name: getattr(faultline, name) for name in faultline.__all__}
IN_TESTS = {name: getattr(faultline.testing, name) for name in faultline.testing.__all__}


def functions(name: str, found: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that a program may call under this name, as they are called."""
    if inspect.isfunction(found):
        yield name, found
    if not isinstance(found, type):
        return
    others = {member for one in found.__mro__ if not one.__module__.startswith("faultline") for member in vars(one)}
    promised = NAMED[name].split(", ") if name in NAMED else None
    for one in found.__mro__:
        if not one.__module__.startswith("faultline"):
            continue
        for member, value in vars(one).items():
            is_promised = not member.startswith("_") if promised is None else member in promised
            if (is_promised and member not in INNER | others) or (member == "__init__" and name not in GIVEN):
                yield from ((f"{name}.{member}", function) for function in _functions_of(value))


def _functions_of(value: Any) -> list[Callable[..., Any]]:
    plain = value.fget if isinstance(value, property) else getattr(value, "func", getattr(value, "__func__", value))
    if not inspect.isfunction(plain):
        return []
    return [plain, *typing.get_overloads(plain)]


def annotated(name: str, found: Any) -> Iterator[tuple[str, str, Any]]:
    """Every annotation of this name: where it is, its text, and what it is in."""
    for called, function in functions(name, found):
        for what, text in function.__annotations__.items():
            yield f"{called}({what})", str(text), inspect.unwrap(function)
    if isinstance(found, type) and name not in NAMED:
        for one in found.__mro__:
            if one.__module__.startswith("faultline"):
                for what, text in vars(one).get("__annotations__", {}).items():
                    if not what.startswith("_") and what not in INNER:
                        yield f"{name}.{what}", str(text), one


def names_for_type_checkers(module: str) -> dict[str, Any]:
    """The names of a module, with those that it imports for type checkers alone."""
    known = dict(vars(sys.modules[module]))
    for node in ast.walk(ast.parse(Path(str(sys.modules[module].__file__)).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("faultline"):
            for alias in node.names:
                imported = getattr(importlib.import_module(str(node.module)), alias.name, None)
                known[alias.asname or alias.name] = imported
    return known


def is_ours(value: Any) -> bool:
    if isinstance(value, TypeVar | ParamSpec):
        return False
    if isinstance(value, type):
        return value.__module__.startswith("faultline")
    return False


@pytest.mark.parametrize("name", [*PUBLIC, *(f"testing.{name}" for name in IN_TESTS)])
def test_every_class_that_a_public_signature_mentions_can_be_imported(name: str) -> None:
    found = IN_TESTS[name.partition(".")[2]] if name.startswith("testing.") else PUBLIC[name]
    importable = [*PUBLIC.values(), *IN_TESTS.values()]
    missing = {
        f"{word} in {where}"
        for where, text, owner in annotated(name.rpartition(".")[2], found)
        for word in re.findall(r"[A-Za-z_]\w*", text)
        if is_ours(value := names_for_type_checkers(owner.__module__).get(word)) and value not in importable
    }

    assert missing == set()


def test_every_error_can_be_imported() -> None:
    ours = {name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)}

    assert ours <= set(faultline.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_says_what_it_is_and_explains_its_parameters(name: str) -> None:
    found = PUBLIC[name]
    if isinstance(found, type) and issubclass(found, errors.FaultlineError):
        assert re.search(rf"─ {name}\b|^{name}$", errors.__doc__ or "", re.MULTILINE)
        return
    if name not in {"Duration", "Json"}:  # what these are stands in a comment beside them
        assert not (inspect.getdoc(found) or f"{name}(").startswith(f"{name}("), "it has no docstring of its own"

    unexplained = set()
    for called, function in functions(name, found):
        if function.__code__.co_filename == "<string>":
            continue  # of a dataclass: its fields are explained one by one
        parameters = [one for one in inspect.signature(function).parameters if one not in {"self", "cls"}]
        told = (inspect.getdoc(found if called.endswith("__init__") else function) or "") + _of_twin(found, called)
        unexplained |= {f"{called}: {one}" for one in parameters if f":param {one}:" not in told and not one.startswith("_")}

    assert unexplained == set()


def _of_twin(found: Any, called: str) -> str:
    """An async method is explained by its blocking twin, and an overload by its function."""
    member = called.rpartition(".")[2]
    return "".join(inspect.getdoc(getattr(found, one, None)) or "" for one in (member, member.removeprefix("a")))


def test_the_options_that_type_checkers_know_are_those_that_are_taken() -> None:
    of_worker = [one.name for one in inspect.signature(Worker).parameters.values() if one.kind is one.KEYWORD_ONLY]

    assert list(WorkerOptions.__annotations__) == of_worker
    assert list(TaskOptions.__annotations__) == list(Options.__dataclass_fields__)

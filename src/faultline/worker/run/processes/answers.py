"""What a process of tasks tells its worker, as JSON. The worker makes no object by code that the task could choose.

Unpickling runs whatever a class says: a result that raised SystemExit when it was read stopped its worker. So a result is
checked and written as JSON text where the task ran, an exception is sent as the names of its classes, and an outcome as its
fields. Everything is cut to size before it is sent: a worker holds the messages of many processes.
"""

from __future__ import annotations

import inspect
import logging
import sys
from dataclasses import dataclass
from datetime import timedelta
from json import JSONEncoder
from typing import TYPE_CHECKING, Any

from faultline.attempt.outcomes import Cancel, ContinueAsNew, Fail, Outcome, Retry, Snooze
from faultline.attempt.storable_text import storable, text_of
from faultline.core.errors import FaultlineError, JobRejected
from faultline.history.calls import Made
from faultline.store import jsontext
from faultline.values import Misfit, as_stored
from faultline.worker.write.endings import unstorable_text

if TYPE_CHECKING:
    from faultline.app.parameters import Results
    from faultline.app.tasks import Task

#: Of a message without the result that may follow in it.
HEAD_BYTES_MAX = 1024 * 1024
#: Of one argument or attribute of an exception, and one value of a log record.
_VALUE_LENGTH_MAX = 16_384
_LOG_LENGTH_MAX = 50_000
_VALUES_MAX = _MEMBERS_MAX = 20
#: Python refuses to write much longer numbers, and to read them.
_BITS_MAX = 2048
_DEPTH_MAX = 5
#: Its own: a job may have replaced the functions of the module.
_as_json = JSONEncoder(ensure_ascii=False).encode
#: What every log record has: text and numbers.
_OF_RECORDS = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})
_OUTCOMES = {kind.__name__: kind for kind in (Retry, Fail, Snooze, Cancel, ContinueAsNew)}
_DONE = "Not retried: the task has done its work. Let it return what its annotation says"


class TaskRaised(Exception):
    """What a task raised in its process, if its class is unknown here or no `Exception`: `SystemExit` must not be raised
    in the worker.
    """


@dataclass(frozen=True, slots=True)
class Returned:
    """A result that was checked and written as JSON where its task ran."""

    text: str


# Written in the process


def _refusal(result: object, error: BaseException) -> str:
    """Why a result cannot be stored, and what was probably meant. Final: another attempt would do the work again and fail
    again.
    """
    if isinstance(error, Misfit):
        return storable(f"its result {error}. {_DONE}")
    if isinstance(result, Made):
        return f"the task returned {result.shown}, which was not awaited; write `return await ...`"
    if isinstance(result, type) and issubclass(result, Outcome):
        return f"the task returned the class {result.__name__} itself; write `return {result.__name__}(...)`"
    return unstorable_text(str(error) if isinstance(error, FaultlineError) else text_of(error))


def result_text(result: object, results: Results, bytes_max: int) -> str | Fail:
    """The JSON text of what a task returned, or how its job ends."""
    if inspect.iscoroutine(result):
        result.close()
        call = f"{result.__name__}(...)"
        return Fail(f"the task returned {call}, which was not awaited; write `return await {call}` in an `async def`")
    try:
        return results.text(result, bytes_max)
    except BaseException as error:  # noqa: BLE001 - a class of the program may raise anything when it is written
        return Fail(_refusal(result, error))


def outcome_fields(outcome: Outcome, task: Task[..., Any] | None, args_bytes_max: int) -> tuple[str, dict[str, Any]]:
    """The name of an outcome and its fields, or `JobRejected`."""
    name = next(name for name, kind in _OUTCOMES.items() if isinstance(outcome, kind))
    if isinstance(outcome, ContinueAsNew):
        if task is None:
            raise JobRejected("the task began anew with ContinueAsNew(...), but its module does not have the task itself")
        args = task.bind(*outcome.positional, **outcome.named).args
        if (size := len(args.encode())) > args_bytes_max:
            raise JobRejected(
                f"the arguments of ContinueAsNew(...) have {size} bytes, more than the limit of {args_bytes_max}"
            )
        return name, {"args": args}
    found = {field: getattr(outcome, field) for field in _OUTCOMES[name].__match_args__}
    return name, {field: value.total_seconds() if isinstance(value, timedelta) else value for field, value in found.items()}


def error_fields(error: BaseException, text: str, aliases: dict[str, str]) -> dict[str, Any]:
    """An exception: the names of its classes, for the rules of the task, and what of it is JSON.

    :param aliases: What the worker calls modules that have other names here.
    """
    try:
        found = _error_fields(error, text, aliases, _DEPTH_MAX)
        if len(_as_json(found)) <= HEAD_BYTES_MAX // 2:
            return found
    except BaseException:  # noqa: BLE001 - a class of the program may raise anything when it is asked for its own
        found = {"classes": [], "text": text}
    return found | {"args": [text[:_VALUE_LENGTH_MAX]], "state": {}, "group": None}


def _error_fields(error: BaseException, text: str, aliases: dict[str, str], depth: int) -> dict[str, Any]:
    group = None
    if isinstance(error, BaseExceptionGroup) and depth:
        group = [_error_fields(one, text_of(one), aliases, depth - 1) for one in error.exceptions[:_MEMBERS_MAX]]
    names = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__ if issubclass(kind, Exception)]
    return {
        "classes": [(aliases.get(module, module), name) for module, name in names],
        "args": [plain(value, str) for value in error.args[:_VALUES_MAX]],
        "state": {name: plain(value, repr) for name, value in list(vars(error).items())[:_VALUES_MAX]},
        "group": group,
        "text": text,
    }


def log_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """A log record that is formatted. What it carries beside its text arrives as JSON or as its `repr`."""
    found = {name: plain(value, repr, _LOG_LENGTH_MAX) for name, value in list(fields.items())}
    if len(_as_json(found)) > HEAD_BYTES_MAX // 2:
        found = {name: found[name] for name in _OF_RECORDS & found.keys()}
    return found


def plain(value: Any, shown: Any = repr, length_max: int = _VALUE_LENGTH_MAX) -> Any:
    """A value as JSON has it, or how it is shown. Whatever its class raises, there is one."""
    if value is None or isinstance(value, float) or (isinstance(value, int) and int.bit_length(value) <= _BITS_MAX):
        return value
    try:
        if not isinstance(value, str):
            text = jsontext.encode(value, "")
            if len(text) <= length_max:
                return jsontext.decode(text)
    except BaseException:  # noqa: BLE001, S110 - whatever it raises: it is shown
        pass
    try:
        text = value if isinstance(value, str) else shown(value)
        return text if len(text) <= length_max else f"{text[:length_max]}… ({len(text)} characters)"
    except BaseException:  # noqa: BLE001 - SystemExit included
        return f"{type(value).__name__} (its text cannot be shown)"


# Read in the worker


def outcome_of(name: str, fields: dict[str, Any], task: Task[..., Any]) -> Outcome:
    if name == ContinueAsNew.__name__:
        try:
            return ContinueAsNew(**task.accept(jsontext.decode_args(fields["args"])))
        except BaseException as error:  # noqa: BLE001 - a class of the program may raise anything when it is read
            return Retry(error=f"the arguments of ContinueAsNew(...) cannot be read: {text_of(error)}")
    return _OUTCOMES[name](**fields)


def error_of(fields: dict[str, Any]) -> Exception:
    """As the task raised it, by the nearest class that this process has imported. No code of that class runs."""
    members = None if fields["group"] is None else [error_of(one) for one in fields["group"]]
    error = next(filter(None, (_made(_class_of(*names), fields, members) for names in fields["classes"])), None)
    if error is None:
        error = ExceptionGroup(str(fields["args"][:1]), members) if members else TaskRaised(*fields["args"])
    vars(error).update(fields["state"])
    vars(error)["__faultline_text__"] = storable(str(fields["text"]))
    return error


def value_of(returned: Returned, task: Task[..., Any]) -> Any:
    """The result as the middleware of the worker gets it, read by the annotation of the task."""
    try:
        return task.results.read(as_stored(jsontext.decode(returned.text)))
    except BaseException as error:  # noqa: BLE001 - a class of the program may raise anything when it is read
        raise TaskRaised(f"the result of the task cannot be read in the worker: {text_of(error)}") from None


def _class_of(module: str, name: str) -> type[Exception] | None:
    """A class that is there, found without calling anything: a module may have its own `__getattr__`."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        if found is None:
            return None
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _made(kind: type[Exception] | None, fields: dict[str, Any], members: list[Exception] | None) -> Exception | None:
    if kind is None:
        return None
    known: Any = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    try:
        if issubclass(kind, ExceptionGroup):
            made: Exception = known.__new__(kind, str(fields["args"][0]), members)
        else:
            made = known.__new__(kind, *fields["args"])
    except Exception:  # noqa: BLE001 - arguments that it does not take
        return None
    return made

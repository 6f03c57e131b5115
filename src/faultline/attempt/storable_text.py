"""Make texts storable: of results, of errors and of tasks, however large or broken they are."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TypeVar

from faultline import values
from faultline.core.bounds import ERROR_LENGTH_MAX
from faultline.core.errors import FaultlineError, JobRejected, ResultRejected, UnreadableJson
from faultline.history.ending import RunEnded, cause_of
from faultline.store import jsontext

T = TypeVar("T")

_FRAMES_MAX = 5
_CAUSES_MAX = 5
_CAUSE_LENGTH_MAX = 1_000
#: Where the files of Faultline are.
_OURS = str(Path(__file__).parents[1])


def result_text(result: object, what: str, bytes_max: int, *, annotated: bool = True) -> str:
    """The JSON text of a result, of a job or a step, or `ResultRejected`: another attempt would end the same way.

    `annotated`: something says what it is read as.
    """
    try:
        text = values.text_of(result, what, annotated=annotated)
    except JobRejected as error:
        raise ResultRejected(str(error)) from error
    # A character has at most four bytes, so most results need not be encoded to be measured.
    if len(text) * 4 > bytes_max and (size := len(text.encode())) > bytes_max:
        raise ResultRejected(f"{what} has {size} bytes, more than the limit of {bytes_max}")
    return text


def step_text(name: str, value: object, read: values.Read | None, bytes_max: int) -> str:
    """The JSON text of what a step returned, or `ResultRejected`.

    `read`: what reads it by the annotation; None: it is JSON.
    """
    what = f"result of step {name}"
    text = result_text(value, what, bytes_max, annotated=read is not None)
    if read is not None:
        try:
            read(values.as_stored(jsontext.decode(text)))
        except values.Misfit as error:
            raise ResultRejected(f"{what} does not fit its annotation: {error}") from error
    return text


def step_result(name: str, stored: T, read: values.Read | None) -> T:
    """The result of a step as its annotation says, or `UnreadableJson`."""
    if read is None:
        return stored
    try:
        found: T = read(stored)
    except values.Misfit as error:
        raise UnreadableJson(
            f"the stored result of step {name} does not fit its annotation: {error}. Let the annotation accept it, or give"
            " the step another name, and retry the job"
        ) from error
    return found


def storable(text: str) -> str:
    """Without NUL and halves of surrogate pairs, which PostgreSQL cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")


def text_of(error: BaseException, name: str | None = None) -> str:
    """The error, its notes, its causes and its last frames. One from another process brings its text.

    `name`: what to call its class.
    """
    text = getattr(error, "__faultline_text__", None)
    if isinstance(text, str):
        return text
    try:
        text = f"{name or type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
        notes = "\n".join(map(str, getattr(error, "__notes__", ())))[-ERROR_LENGTH_MAX:]
    except BaseException:  # noqa: BLE001 - an exception whose own text raises, maybe SystemExit
        text, notes = f"{type(error).__name__} (its text cannot be shown)", ""
    # Without the marks under each line: computing them takes longer than the rest of a failed attempt.
    frames = "".join(traceback.StackSummary.from_list(_last(error)).format())[-ERROR_LENGTH_MAX:]
    return storable("\n".join(part.strip("\n") for part in (text, notes, _causes(error), frames) if part.strip()))


def _causes(error: BaseException) -> str:
    """What the error was raised from, and where, until an error of Faultline: those say their cause themselves."""
    found: list[str] = []
    cause = cause_of(error)
    while len(found) < _CAUSES_MAX and isinstance(cause, Exception) and not isinstance(error, FaultlineError | RunEnded):
        try:
            found.append(f"caused by {type(cause).__name__}: {cause}"[:_CAUSE_LENGTH_MAX])
        except BaseException:  # noqa: BLE001 - likewise
            found.append(f"caused by {type(cause).__name__} (its text cannot be shown)")
        found.append("".join(traceback.StackSummary.from_list(_last(cause)[-1:]).format()).rstrip("\n"))
        error, cause = cause, cause_of(cause)
    return "\n".join(filter(None, found))


def _last(error: BaseException) -> list[tuple[str, int, str, None]]:
    """Its last frames. Those of Faultline itself only if there are no others: a task cannot be mended there."""
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name, None)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return ([frame for frame in frames if not frame[0].startswith(_OURS)] or frames)[-_FRAMES_MAX:]

"""Make texts storable, of errors and of tasks, however large or broken they are."""

from __future__ import annotations

import traceback
from collections import deque

from faultline.core.bounds import ERROR_LENGTH_MAX

_FRAMES_MAX = 5


def storable(text: str) -> str:
    """Without NUL and halves of surrogate pairs, which PostgreSQL cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")


def text_of(error: BaseException) -> str:
    """The error and its last frames."""
    try:
        text = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
        last = deque(traceback.walk_tb(error.__traceback__), maxlen=_FRAMES_MAX)
        # Without the marks under each line: computing them takes longer than the rest of a failed attempt.
        lines = [(frame.f_code.co_filename, line, frame.f_code.co_name, None) for frame, line in last]
        frames = "".join(traceback.StackSummary.from_list(lines).format())[-ERROR_LENGTH_MAX:]
    except BaseException:  # noqa: BLE001 - an exception whose own text raises, maybe SystemExit
        text, frames = f"{type(error).__name__} (its text cannot be shown)", ""
    return storable(f"{text}\n{frames}".strip() if frames else text)

"""Where a task is when its time is up: in a thread, which goes on, or in a process, which is about to be killed.

Only a hint for people. Whatever goes wrong here, the attempt has timed out, and its error says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import re
import signal
import sys
import traceback
from types import TracebackType

from faultline.worker.base.memory_file import nameless_file

#: How long a process may take to say where it is.
_ANSWER_SECONDS = 0.2
_LOOK_SECONDS = 0.005
#: 100 frames, which is as many as are written.
_BYTES_MAX = 100_000
_FRAMES_MAX = 5
#: One that programs hardly use. A task that has taken it for itself is killed without having said where it was.
_SIGNAL = getattr(signal, "SIGRTMAX", None)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
#: Below its frames are those of the worker; no task needs to see them.
_FIRST_OF_OURS = f"{os.sep}faultline{os.sep}worker{os.sep}"


def of_thread(ident: int) -> TracebackType | None:
    """As the traceback of an error has it: the innermost call last."""
    found: TracebackType | None = None
    frame = sys._current_frames().get(ident)  # noqa: SLF001 - there is no other way
    while frame is not None and _FIRST_OF_OURS not in frame.f_code.co_filename:
        found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno or 0)
        frame = frame.f_back
    return found


def answer_with(number: int) -> None:
    """In the process of tasks: write where the main thread is to this file when the worker asks for it.

    Not in Python: a task that is inside of an extension gets no signal there.
    """
    os.set_inheritable(number, False)
    if _SIGNAL is not None:
        faulthandler.register(_SIGNAL, file=number, all_threads=False)


class Dump:
    """The file to which one process writes where it is."""

    def __init__(self) -> None:
        self._file = os.fdopen(nameless_file("faultline-stack"), "rb", buffering=0)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    async def asked(self, process: int) -> str:
        """The innermost frames of the process, as errors show them; empty if it does not say in time."""
        if _SIGNAL is None:
            return ""
        text = ""
        with contextlib.suppress(OSError):
            os.kill(process, _SIGNAL)
            for _ in range(int(_ANSWER_SECONDS / _LOOK_SECONDS)):
                await asyncio.sleep(_LOOK_SECONDS)
                text = os.pread(self._file.fileno(), _BYTES_MAX, 0).decode(errors="replace")
                if _FIRST_OF_OURS in text or text.endswith("...\n"):
                    break
        return _shown(text)


def _shown(text: str) -> str:
    frames: list[tuple[str, int, str, str | None]] = []
    for path, line, name in _FRAME.findall(text):
        if _FIRST_OF_OURS in path or len(frames) == _FRAMES_MAX:
            break
        frames.append((path, int(line), name, None))
    return "".join(traceback.StackSummary.from_list(frames[::-1]).format())

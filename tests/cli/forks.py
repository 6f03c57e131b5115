"""Processes of the command line, forked from one that has imported everything: that takes longer than most commands do.

`python -m tests.cli.forks` reads what to run line by line, and answers each with the exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any

#: What the commands import when they run, so that `--help` is quick.
_LATE = (
    "faultline.cli.commands.doctor",
    "faultline.cli.printing.job_view",
    "faultline.cli.printing.screen",
    "faultline.cli.printing.tables",
    "faultline.app.application",
    "faultline.store.reads.failures",
    "faultline.store.reads.listing",
    "faultline.store.reads.views",
    "faultline.web.server.server",
)


def serve() -> None:
    from faultline.cli.main import main  # noqa: PLC0415 - whoever asks for a process need not import it

    for name in _LATE:
        importlib.import_module(name)
    gc.freeze()  # or every child would, at its end, look through all that was imported: three quarters of its time
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
            main()
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201 - the answer


def _become(asked: dict[str, Any]) -> None:
    """A process with these words, this environment, and files for what it prints."""
    os.environ.clear()
    os.environ.update(asked["environ"])
    sys.argv = ["faultline", *asked["words"]]
    sys.modules["__main__"].__package__ = None  # as in a script: by that it knows its name
    for number, (path, how) in enumerate(
        ((os.devnull, os.O_RDONLY), (asked["out"], os.O_WRONLY), (asked["err"], os.O_WRONLY))
    ):
        opened = os.open(path, how)
        os.dup2(opened, number)
        os.close(opened)


if __name__ == "__main__":
    serve()

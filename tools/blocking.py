"""Write the blocking side of what was written async: `python -m tools.blocking` (`make generate`).

The async source is the truth. Its tokens are copied, without `async` and `await` and with the names below exchanged.
Comments stay, and ruff puts the result in order. What differs by more than that stands in a module of its own, in two
forms whose names differ by an `a` or `Async` in front. A test refuses a generated file that its source does not give.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/faultline"
#: The flow engine. Its blocking side stands in a folder of its own, under the same names.
_ENGINE = ("budgets", "children", "gather", "job_calls", "patches", "recording", "sagas", "steps")
_IMPORTED = re.compile(rf"\bfaultline\.flow\.({'|'.join(_ENGINE)})\b")
#: Each generated file and its source.
GENERATED = {
    **{PACKAGE / f"flow/blocking/{name}.py": PACKAGE / f"flow/{name}.py" for name in _ENGINE},
    PACKAGE / "flow/blocking/deferred_calls.py": PACKAGE / "flow/job_calls.py",
    PACKAGE / "app/blocking_job.py": PACKAGE / "app/job.py",
    PACKAGE / "attempt/blocking_transaction.py": PACKAGE / "attempt/async_transaction.py",
    PACKAGE / "store/database.py": PACKAGE / "store/async_database.py",
    PACKAGE / "store/pool/pool.py": PACKAGE / "store/pool/async_pool.py",
}

_NAMES = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncConnection": "Connection",
    "AsyncCursor": "Cursor",
    "AsyncDatabase": "Database",
    "AsyncExitStack": "ExitStack",
    "AsyncIterator": "Iterator",
    "AsyncJoined": "Joined",
    "AsyncPool": "Pool",
    "AsyncPools": "Pools",
    "AsyncRowFactory": "RowFactory",
    "AsyncServerCursor": "ServerCursor",
    "Call": "BlockingCall",
    "Flows": "BlockingFlows",
    "Job": "BlockingJob",
    "Saga": "BlockingSaga",
    "Transaction": "BlockingTransaction",
    "aacquired": "acquired",
    "abeside": "beside",
    "ablock": "block",
    "acalled": "called",
    "acurrent": "current",
    "aconnect": "connect",
    "aenter": "enter",
    "ajoined": "joined",
    "agive_way": "give_way",
    "amade": "made",
    "ahappened": "happened",
    "alittle": "little",
    "apause": "pause",
    "apaused": "paused",
    "arun_on": "run_on",
    "async_transaction": "blocking_transaction",
    "asoon": "soon",
    "astarted": "started",
    "astopped": "stopped",
    "async_database": "database",
    "async_pool": "pool",
    "asynccontextmanager": "contextmanager",
    "asyncio": "threading",
    "atimed": "timed",
    "auntil": "until",
    "current_task": "current_thread",
    "enter_async_context": "enter_context",
    "push_async_exit": "push",
}
_DROPPED = {"async", "await"}
#: Prose that is true of one side only.
_PROSE = {
    "The job of an `async def` task.": "The job of a blocking task, which runs in a thread.",
    "An async client of one database. Connects when first used; each event loop gets connections of its own.": (
        "A blocking client of one database, safe to share between threads. Connects when first used."
    ),
    "For the tasks of one event loop.": "For threads.",
    "The transaction of `job.transaction()` in an `async def` task. It belongs to the asyncio task that opened it.": (
        "The transaction of `job.transaction()` in a blocking task. It belongs to the thread that opened it."
    ),
    "It commits at the end of the `async with` block": "It commits at the end of the `with` block",
    "is refused,\n    and so is a block that ends with a statement that was never awaited.": "is refused.",
    "does: `await tx.execute": "does: `tx.execute",
    "  # being cancelled counts": "",
    "  # which never really waits: a cancellation would hide the error": "",
}
#: A call runs when it is awaited there, and when it is made here.
_CALL, _MAKE = re.compile(r"-> Call\[(.*)\]:"), re.compile(r"\bself\._make\(")
#: `job.later` makes calls that do not run yet. It asks its job for them.
_FLOWS = re.compile(r"class Flows\(Programs\):\n    .*\n")
_LATER = '''class DeferredCalls:
    """Makes calls for `job.gather` and `job.race`: `job.later.do(step)` is as `job.do(step)`, and does not run yet."""

    def __init__(self, job_id: UUID, make: Callable[..., Call[Any]], beside: Callable[..., tuple[Call[Any], ...]]) -> None:
        self.id = job_id
        self._make = make
        self._beside = beside
'''
_AT_ONCE = '''class Flows(Programs):
    """What a program calls. Each call runs at once; `later` makes those that run beside each other."""

    @property
    def later(self) -> DeferredCalls:
        """Makes calls for `gather` and `race`: `job.gather(job.later.do(one), job.later.do(other))`."""
        return DeferredCalls(self.id, self._make, self._beside)
'''
#: What is awaited there is answered here.
_AWAITABLE = re.compile(r"\bAwaitable\[([^\[\]]*)\]")
_COROUTINE, _MUST_AWAIT = re.compile(r"\bCoroutine\[Any, Any, (.*\])\]"), re.compile(r" +@must_await\n")
#: What takes both a function and an async one there takes only the first here: what is left of its overloads is the same.
_SAME_OVERLOADS = re.compile(r"( +@overload\n +def .*: \.\.\.\n)\1")


def blocking(source: Path, *, later: bool = False) -> str:
    """The blocking side of a module, as ruff would have it. `later`: that of calls which do not run yet."""
    text = exchanged(_shaped(source, later=later))
    name = source.relative_to(ROOT)
    text = f"# Generated from {name} by `make generate`: change that file, not this one.\n{text}"
    for command in (
        ["check", "--fix-only", "--unsafe-fixes", "--select", "I,F401,PYI016,SIM117,UP028", "-"],
        ["format", "-"],
    ):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(source)]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def _shaped(source: Path, *, later: bool) -> str:
    text = source.read_text()
    if source.name == "sagas.py":
        return _CALL.sub(r"-> \1:", text)
    if source.name != "job_calls.py":
        return text
    if later:
        return _FLOWS.sub(_LATER, text)
    deferred, options = "from faultline.flow.blocking.deferred_calls import DeferredCalls", "from faultline.attempt.options"
    text = text.replace(options, f"{deferred}\n{options}", 1)
    return _FLOWS.sub(_AT_ONCE, _MAKE.sub("self._make_now(", _CALL.sub(r"-> \1:", text)))


def exchanged(text: str) -> str:
    """The blocking side of a text."""
    lines = text.splitlines(keepends=True)
    edits = [edit for token in tokenize.generate_tokens(io.StringIO(text).readline) if (edit := _edit(token, lines))]
    for row, start, end, new in reversed(edits):
        line = lines[row]
        lines[row] = line[:start] + new + line[end:]
    result = _MUST_AWAIT.sub("", _COROUTINE.sub(r"\1", _AWAITABLE.sub(r"\1", "".join(lines))))
    result = _IMPORTED.sub(r"faultline.flow.blocking.\1", _SAME_OVERLOADS.sub("", result))
    for ours, theirs in _PROSE.items():
        result = result.replace(ours, theirs)
    return result


def _edit(token: tokenize.TokenInfo, lines: list[str]) -> tuple[int, int, int, str] | None:
    """What to write instead of a name: line, from, to, text."""
    row, start, end = token.start[0] - 1, token.start[1], token.end[1]
    if token.type != tokenize.NAME:
        return None
    if token.string in _DROPPED:
        spaces = len(lines[row][end:]) - len(lines[row][end:].lstrip(" "))
        return row, start, end + spaces, ""
    new = _NAMES.get(token.string)
    return None if new is None else (row, start, end, new)


def main() -> None:
    for generated, source in GENERATED.items():
        generated.write_text(blocking(source, later=generated.name == "deferred_calls.py"))


if __name__ == "__main__":
    main()

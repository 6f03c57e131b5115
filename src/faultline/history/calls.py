"""A call of a program: made at one position, run when it is awaited. `BlockingCall` is the same in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar

from faultline.core.errors import ConfigError
from faultline.history.ending import Waiting, note_call
from faultline.history.program import Branch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from faultline.history.program import Program
    from faultline.history.race import Contest

R_co = TypeVar("R_co", covariant=True)

#: The branch in which this code runs, or the step that it is a part of. A new asyncio task inherits it.
_around: ContextVar[Branch | Made[Any] | None] = ContextVar("branch", default=None)
#: More calls than a branch can make.
_ALL = 999_999_999


class Won(NamedTuple, Generic[R_co]):
    """What came first in a race: `index, value = await job.race(...)`."""

    #: Which of the race's calls it was, from 0.
    index: int  # type: ignore[assignment]  # instead of the method of tuples
    #: Its result.
    value: R_co


class Made(Generic[R_co]):
    """A call with its number, which it has from when it was made."""

    __slots__ = (
        "begun",
        "branch",
        "call_id",
        "digest",
        "given_contest",
        "given_races",
        "given_rank",
        "is_spawned",
        "kind",
        "made_at",
        "name",
        "number",
        "run",
        "what",
    )

    def __init__(
        self, branch: Branch, kind: str, name: str, digest: str | None, what: Any, run: Callable[[Any], Any]
    ) -> None:
        self.branch = branch
        self.kind = kind
        self.name = name
        #: What it calls: arguments, or other calls.
        self.what = what
        self.run = run
        #: A gather is not recorded by itself, and a guard of a change has no position.
        self.number = "" if kind in ("gather", "patch") else branch.program.made(branch, name)
        if kind == "patch":
            branch.program.asked(name)
        #: Of the arguments. The first call of a branch says of that branch, too, what it was made of.
        self.digest = branch.signed(digest) if self.number and kind != "branch" else digest
        #: What failed before is history when this one is recorded: the program went on. Renewed when it is awaited.
        self.made_at = branch.program.next_moment()
        self.begun = False
        #: The id of the recorded call.
        self.call_id: int | None = None
        #: Whether its jobs were all enqueued by an earlier run; None: not looked yet.
        self.is_spawned: bool | None = None
        #: The race that it runs in, if that was made in the same branch, and its place there.
        self.given_contest: Contest | None = None
        self.given_rank: tuple[int, ...] = ()
        self.given_races: tuple[str, ...] = ()

    def begin(self) -> None:
        if self.begun:
            raise ConfigError(
                f"job {self.branch.program.job_id}: {self.shown} was awaited before; keep its result in a variable, or make"
                " the call again"
            )
        self.begun = True

    def come_to(self) -> None:
        """The program awaits it now, and with it the calls that it runs beside each other."""
        self.made_at = self.branch.program.next_moment()
        for one in self.what if self.kind in ("gather", "race") else ():
            one.come_to()

    def contend(self, contest: Contest, rank: tuple[int, ...], races: tuple[str, ...]) -> None:
        """It runs in a race, and with it the calls that it runs beside each other."""
        self.given_contest, self.given_rank, self.given_races = contest, rank, races
        for index, one in enumerate(self.what if self.kind in ("gather", "race") else ()):
            one.contend(contest, (*rank, index), races)

    @property
    def contest(self) -> Contest | None:
        """The race that it runs in, at whatever depth."""
        return self.given_contest or self.branch.contest

    @property
    def races(self) -> tuple[str, ...]:
        """The numbers of the races that it runs in."""
        return self.given_races or self.branch.races

    @property
    def rank(self) -> tuple[int, ...]:
        """The order of the arguments in that race."""
        return self.given_rank or (*self.branch.rank, *map(int, self.number.split(".") if self.number else ()))

    @property
    def shown(self) -> str:
        """What messages call it."""
        if self.kind == "patch":
            return f"job.patched({self.name!r})"
        return f"call {self.number} ({self.name})" if self.number else f"job.{self.kind}(...)"

    # A call that stands where its result was meant

    def unawaited(self, consequence: str = "so it has no result") -> ConfigError:
        """What to raise for it."""
        return ConfigError(
            f"job {self.branch.program.job_id}: {self.shown} was not awaited, {consequence}; write `await` before it"
        )

    def __bool__(self) -> NoReturn:
        raise self.unawaited()

    # Not shown to type checkers: they refuse what a call does not have.
    if not TYPE_CHECKING:

        def _refuse(self, *_: object) -> NoReturn:
            raise self.unawaited()

        __iter__ = __len__ = __contains__ = __getitem__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
        __hash__ = object.__hash__

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(str(self.unawaited(f"so it has no {name}")))

    def as_recorded(self, **words: Any) -> dict[str, Any]:
        """As `record` takes it."""
        return {"number": self.number, "kind": self.kind, "name": self.name, "digest": self.digest, **words}

    def as_wait(self, **words: Any) -> dict[str, Any]:
        """As `suspend` takes it."""
        return self.as_recorded(**words)


class Call(Made[R_co]):
    """A call that was made. It runs when it is awaited, or in `job.gather` or `job.race`."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.now().__await__()

    async def now(self) -> R_co:
        """Run it, and return its result."""
        here(self.branch.program, acurrent())
        self.begin()
        self.come_to()
        try:
            with stoppable(self.branch, self.shown):
                result: R_co = await self.run(self)
        except Waiting as waiting:
            raise self.branch.suspend(waiting.waits) from None
        except Exception as error:
            self.branch.program.halt_behind(self.branch)
            note_call(error, self.number)
            raise
        self.branch.program.halt_behind(self.branch)
        return result


class BlockingCall(Made[R_co]):
    """A call that was made with `job.later`. It runs in `job.gather` or `job.race`, or by `now`."""

    __slots__ = ()

    def now(self) -> R_co:
        """Run it, and return its result."""
        here(self.branch.program, current())
        self.begin()
        self.come_to()
        try:
            result: R_co = self.run(self)
        except Waiting as waiting:
            raise self.branch.suspend(waiting.waits) from None
        except Exception as error:
            self.branch.program.halt_behind(self.branch)
            note_call(error, self.number)
            raise
        self.branch.program.halt_behind(self.branch)
        return result


def amade(call: Call[R_co]) -> Call[R_co]:
    """A call that was made, as the program gets it: it runs when it is awaited."""
    return call


def made(call: BlockingCall[R_co]) -> R_co:
    """The same in a thread, where a call runs as soon as it is made."""
    return call.now()


def acurrent() -> object:
    """What runs this code: an asyncio task, or a thread without a loop, which a program may have started."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.current_thread()


def current() -> object:
    return threading.current_thread()


def here(program: Program, runner: object) -> Branch:
    """The branch in which the program makes a call; `ConfigError` where it cannot make one."""
    around = _around.get()
    if isinstance(around, Made):
        raise ConfigError(
            f"job {program.job_id}: step {around.name} makes a call of the flow, but a step is remembered as a whole; make"
            " the call in the task itself"
        )
    branch = around if isinstance(around, Branch) and around.program is program else program.root
    if branch.owner is None:
        branch.owner = runner
    if branch.owner is not runner:
        raise program.misused(
            "an asyncio task or thread that the program started makes a call of the flow, which would have another number in"
            " each run; use job.gather(job.branch(function, ...), ...)"
        )
    return branch


def branch_around(program: Program) -> Branch | None:
    """The branch in which this code runs; None: it is part of a step."""
    around = _around.get()
    if isinstance(around, Made):
        return None
    return around if isinstance(around, Branch) and around.program is program else program.root


def around_here() -> Branch | Made[Any] | None:
    """As `within` takes it."""
    return _around.get()


def reach(program: Program | None) -> dict[str, int]:
    """How far the program has come here: for each branch around this code, how many calls it has made.

    What is written here is kept when a later call of one of these branches is on record. A step counts as a branch that ends
    with it, and so does a race.
    """
    if program is None:
        return {"": 0}
    around, found = _around.get(), dict[str, int]()
    if around is None or (around.branch if isinstance(around, Made) else around).program is not program:
        around = program.root
    found.update(dict.fromkeys(around.races, _ALL))
    if isinstance(around, Made):
        found[around.number] = _ALL
    branch: Branch | None = around.branch if isinstance(around, Made) else around
    while branch is not None:
        found[branch.path] = branch.counter
        branch = branch.parent
    return found


@contextlib.contextmanager
def stoppable(branch: Branch, call: str) -> Iterator[None]:
    """The branch remembers if it is cancelled inside: the program may catch that, and must not go on from it."""
    try:
        yield
    except asyncio.CancelledError:
        branch.cancelled = branch.cancelled or call
        raise


@contextlib.contextmanager
def within(around: Branch | Made[Any] | None) -> Iterator[None]:
    """What runs inside belongs to this branch, or is a part of this step."""
    token = _around.set(around)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # left in another context than entered
            _around.reset(token)

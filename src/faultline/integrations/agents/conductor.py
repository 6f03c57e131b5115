"""Lets a run of an agent, which has asyncio tasks of its own, make calls of a flow.

Only the task that runs a branch may make calls in it. So the agent runs beside it and asks: the branch makes the call, and
the agent gets what came of it. Requests to the model come one after the other. What comes between two of them may come at
once, in any order, and must have the same numbers in every run: so there is a track for each tool call that the model has
asked for and for each toolset that is asked for its tools. A track is a branch, known before anything comes to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypedDict

from faultline.app.job import Job
from faultline.attempt.current import current_job
from faultline.core.errors import ConfigError
from faultline.flow.step_functions import Step
from faultline.history.calls import around_here, branch_around, within
from faultline.history.ending import RunEnded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from faultline.attempt.options import Duration
    from faultline.flow.step_functions import Retries
    from faultline.history.calls import Made
    from faultline.history.program import Branch

#: What belongs to no tool call and no toolset.
OTHER = "other"
#: When one track waits, what comes to the others this soon is still begun, so that the job waits for all of it at once.
_SOON_SECONDS = 0.05

#: The conductor of the run that this code belongs to; None: it is part of a step, or of no run.
conducting: ContextVar[Conductor | None] = ContextVar("conductor", default=None)


class StepOptions(TypedDict, total=False):
    """How a step is run."""

    #: How often it is tried again.
    retries: Retries | int
    #: How long one try may take.
    timeout: Duration | None


def flow_here() -> Job | None:
    """The flow in which an agent is run here; None: there is none, or this is a part of one of its steps."""
    job = current_job()
    if job is None:
        return None
    if not isinstance(job, Job):
        raise ConfigError(
            f"job {job.id}: an agent is run in a task that is `async def` and takes `job: Job` as its first parameter"
        )
    if job.program is not None and branch_around(job.program) is None:
        return None
    if conducting.get() is not None:
        raise ConfigError(f"job {job.id}: an agent runs another one outside of a step, in each run again; run it in a tool")
    return job


class Asked:
    """A call that the agent wants to be made."""

    __slots__ = ("answer", "call")

    def __init__(self, call: Callable[[Job], Awaitable[Any]]) -> None:
        self.call = call
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class Track:
    """A branch that makes, one after the other, the calls that one tool call or one toolset asks for."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: None: nothing more comes. An event: look again whether others wait.
        self.queue: asyncio.Queue[Asked | asyncio.Event | None] = asyncio.Queue()


class Conductor:
    """Makes the calls of one run of an agent, in the branch that has started the run."""

    def __init__(
        self,
        job: Job,
        calls_in: Callable[[Any], Sequence[str]],
        toolsets: Iterable[str] = (),
        called: Sequence[str] = (),
    ) -> None:
        """:param calls_in: The ids of the tool calls in a model's response, as it is stored.
        :param toolsets: Names of those that are asked for their tools.
        :param called: Ids of the tool calls with which the run begins.
        """
        self.job = job
        #: What the tools of this round have failed with, by their track.
        self._failures: dict[str, Exception] = {}
        self._calls_in = calls_in
        self._toolsets = sorted(toolsets)
        self._requests: asyncio.Queue[Asked | None] = asyncio.Queue()
        self._tracks: dict[str, Track] = {}
        #: Set when a track waits for something that only a later run will see.
        self._waits = asyncio.Event()
        self._is_over = False
        self._open(called)

    async def conduct(self, run: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run the agent and make its calls until it has ended. What it returned or raised."""
        context = copy_context()
        context.run(conducting.set, self)
        running = asyncio.get_running_loop().create_task(run(), context=context)
        running.add_done_callback(self._over)
        try:
            while True:
                tracks = [self.job.branch(_named(self._serve, track.name), track) for track in self._tracks.values()]
                await self.job.gather(*tracks)
                asked = await self._requests.get()
                if asked is None:
                    return await running
                await self._make(asked)
        finally:
            if not running.done():
                running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    @property
    def failure(self) -> Exception | None:
        """Of several tools that have failed beside each other, the same one in every run, whichever was quicker."""
        return next((self._failures[name] for name in self._tracks if name in self._failures), None)

    # The agent's side

    async def step(
        self,
        name: str,
        body: Callable[[], Awaitable[Any]],
        options: StepOptions,
        *,
        track: str | None,
        is_request: bool = False,
    ) -> Any:
        """Run something as a step. It is a part of that: it makes no calls of the flow, nor do agents that it runs.

        :param name: Running jobs know the step by that: it stays the same.
        :param track: That of a tool call or a toolset.
        :param is_request: It asks the model, between two rounds of tools.
        """
        context = copy_context()

        async def part(step: Branch | Made[Any] | None) -> Any:
            conducting.set(None)
            with within(step):
                return await body()

        async def run() -> Any:
            # With what the agent's own task knows, such as the trace that it is in.
            return await asyncio.get_running_loop().create_task(part(around_here()), context=context)

        step: Step[..., Any] = Step(run, name=name, **options)
        if is_request:
            return await self.ask_model(lambda job: job.do(step))
        return await self.ask(track, lambda job: job.do(step))

    async def ask_model(self, call: Callable[[Job], Awaitable[Any]]) -> Any:
        """Make a call between two rounds of tools."""
        asked = Asked(call)
        self._close()
        self._requests.put_nowait(asked)
        return await asked.answer

    async def ask(self, track: str | None, call: Callable[[Job], Awaitable[Any]]) -> Any:
        """Make a call in the track of a tool call or a toolset."""
        asked = Asked(call)
        self._tracks.get(track or OTHER, self._tracks[OTHER]).queue.put_nowait(asked)
        return await asked.answer

    def _over(self, _running: asyncio.Task[Any]) -> None:
        self._is_over = True
        self._close()
        self._requests.put_nowait(None)

    # The flow's side

    def _open(self, called: Sequence[str]) -> None:
        """Tracks for what may come before the next request to the model."""
        left = [one for track in self._tracks.values() for one in _emptied(track)]
        names = [OTHER, *(track_of_toolset(one) for one in self._toolsets), *called]
        self._tracks = {name: Track(name) for name in names}
        self._failures = {}
        for one in left:
            self._tracks[OTHER].queue.put_nowait(one)
        if self._is_over:  # while the model was asked: nobody else closes what opens now
            self._close()

    def _close(self) -> None:
        for track in self._tracks.values():
            track.queue.put_nowait(None)

    async def _serve(self, track: Track) -> None:
        while (asked := await self._next(track)) is not None:
            await self._make(asked, track.name)

    async def _next(self, track: Track) -> Asked | None:
        while True:
            try:
                async with asyncio.timeout(_SOON_SECONDS if self._waits.is_set() else None):
                    found = await track.queue.get()
            except TimeoutError:
                return None
            if not isinstance(found, asyncio.Event):
                return found

    async def _make(self, asked: Asked, track: str | None = None) -> None:
        """Make a call and answer with what came of it. Without a track it asks the model: a new round of tools begins."""
        try:
            result = await asked.call(self.job)
        except RunEnded:
            self._waits.set()
            for one in self._tracks.values():
                one.queue.put_nowait(self._waits)
            raise
        except Exception as error:  # noqa: BLE001 - the agent gets it
            if track is None:
                self._open(())
            else:
                self._failures.setdefault(track, error)
            if not asked.answer.done():
                asked.answer.set_exception(error)
        else:
            if track is None:
                self._open(self._calls_in(result))
            if not asked.answer.done():
                asked.answer.set_result(result)


def track_of_toolset(name: str) -> str:
    return f"toolset {name}"


def _named(serve: Callable[[Track], Awaitable[None]], name: str) -> Callable[[Track], Awaitable[None]]:
    """Messages call a branch by the name of its function."""

    async def track(own: Track) -> None:
        await serve(own)

    track.__name__ = name
    return track


def _emptied(track: Track) -> Iterable[Asked]:
    """What came after it was closed."""
    with contextlib.suppress(asyncio.QueueEmpty):
        while True:
            found = track.queue.get_nowait()
            if isinstance(found, Asked):
                yield found

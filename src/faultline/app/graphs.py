"""Graphs of jobs that are known in advance: `app.flow()` collects them, and one call enqueues them all, or none."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast

from faultline.app.enqueue_in_session import session_of
from faultline.app.handle import JobHandle
from faultline.app.job import Job  # noqa: TC001 - the task is reasons by its annotation
from faultline.app.tasks import Task
from faultline.attempt.options import Options, check_text
from faultline.attempt.unawaited import must_await
from faultline.core.bounds import KEY_LENGTH_MAX
from faultline.core.errors import ChildFailed, ConfigError, JobRejected
from faultline.core.model import Submission
from faultline.flow.usage_errors import check_task
from faultline.store import jsontext
from faultline.store.external_sessions import ajoined, joined
from faultline.store.verbs import flow as verbs
from faultline.store.verbs import graphs

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable
    from uuid import UUID

    from faultline.app.enqueue_in_session import AnySession
    from faultline.app.handle import Looks
    from faultline.core.ids import Ids
    from faultline.core.model import Enqueued, Json
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database
    from faultline.store.external_sessions import AsyncJoined, Joined
    from faultline.store.statement import Statement

R = TypeVar("R")

#: The task of a flow's root. Every application has it.
COLLECT = "faultline.flow"
_NAME_LENGTH_MAX = 200
#: The call by which the root waits for all others.
_JOBS = "0"
_PAGE = 1000


class FlowJob(Generic[R]):
    """A job of a flow that is not enqueued yet, as `flow.add` returns it: others can come after it."""

    def __init__(self, name: str) -> None:
        #: Under which the flow's result and `job.upstream()` have it.
        self.name = name

    def __repr__(self) -> str:
        return f"<FlowJob {self.name}>"


class FlowHandle(JobHandle[dict[str, Any]]):
    """A handle for a flow. Its result: those of the jobs that no other comes after, by name. To cancel it cancels all.

    If a job fails or is cancelled, the flow fails once all others have ended, and its error names that job.
    """

    __slots__ = ("jobs",)

    def __init__(self, app: Looks, job_id: UUID, jobs: dict[str, JobHandle[Any]], *, created: bool) -> None:
        super().__init__(app, job_id, created=created)
        #: A handle for each job of the flow, by its name.
        self.jobs = jobs


class Flow:
    """Jobs of which some come after others. Nothing exists before `enqueue`. Made by `app.flow(…)`."""

    def __init__(self, app: Graphs, name: str, queue: str | None) -> None:
        self._app = app
        self.name = name
        self._queue = queue
        #: Whose transaction its jobs join; None: they have their own.
        self._session: Joined | AsyncJoined | None = None
        self._nodes: list[graphs.Node] = []
        self._jobs: set[FlowJob[Any]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def add(
        self,
        task: Task[..., R] | Submission,
        /,
        *args: Any,
        after: Iterable[FlowJob[Any]] = (),
        if_failed: Literal["cancel", "run"] = "cancel",
        name: str | None = None,
        **kwargs: Any,
    ) -> FlowJob[R]:
        """Add a job.

        :param task: What it runs; or a job as `task.bind(…)` makes it, whose arguments a type checker has checked.
        :param args: Positional arguments of the task.
        :param after: Jobs of this flow that must have ended before it runs.
        :param if_failed: What becomes of it if one of these fails or is cancelled: it is cancelled too, or it runs.
        :param name: Under which the flow's result has it. Default: the name of the task, with a number from the second on.
        :param kwargs: Named arguments of the task.
        """
        if not isinstance(task, Submission):
            check_task("", "flow.add", task, "make it a task with @app.task")
        job = task if isinstance(task, Submission) else task.bind(*args, **kwargs)
        if isinstance(task, Submission) and (args or kwargs):
            raise JobRejected(f"job {task.task} is bound already; give its arguments to bind(...)")
        if if_failed not in ("cancel", "run"):
            raise JobRejected(f"if_failed must be 'cancel' or 'run', not {if_failed!r}")
        known = {node.name for node in self._nodes}
        found = FlowJob[R](self._named(job.task, known) if name is None else name)
        check_text("the name of a job", found.name, _NAME_LENGTH_MAX)
        if found.name in known:
            raise JobRejected(f"flow {self.name} has a job named {found.name} already; give this one another name=...")
        before = tuple(one.name for one in self._added(found.name, after))
        if len(set(before)) < len(before):
            raise JobRejected(f"job {found.name} comes after the same job twice")
        self._jobs.add(found)
        self._nodes.append(graphs.Node(job, found.name, before, if_failed))
        return found

    def _added(self, name: str, after: Iterable[FlowJob[Any]]) -> list[FlowJob[Any]]:
        """What a job comes after: jobs that were added to this very flow."""
        if isinstance(after, FlowJob | str):
            raise JobRejected(f"job {name}: after= takes a list; write after=[{after!r}]")
        found = list(after)
        for one in found:
            if not isinstance(one, FlowJob):
                raise JobRejected(
                    f"job {name}: after=[...] takes jobs of this flow, as flow.add(...) returned them, not {one!r:.80}"
                )
            if one not in self._jobs:
                raise JobRejected(f"job {name} comes after {one.name}, which was not added to flow {self.name} before")
        return found

    def _named(self, task: str, known: set[str]) -> str:
        number, name = 1, task
        while name in known:
            number += 1
            name = f"{task} {number}"
        return name

    def using(self, session: AnySession) -> Flow:
        """The same flow, whose jobs join the transaction of your session: `flow.using(session).enqueue()`.

        :param session: As for `app.using`.
        """
        other = copy(self)
        other._session = session_of(session)  # noqa: SLF001 - another of ourselves
        return other

    def enqueue(self, *, idempotency_key: str | None = None) -> FlowHandle:
        """Enqueue all jobs, or none.

        :param idempotency_key: A second enqueue of the same flow with this key gives the jobs of the first.
        """
        if self._session is not None:
            return self._handle(joined(self._session).run(self._statement(idempotency_key, None)))
        self._app.database.facts_and_time()
        return self._handle(self._app.database.run(self._statement(idempotency_key, self._app._ids)))  # noqa: SLF001 - its own

    @must_await
    async def aenqueue(self, *, idempotency_key: str | None = None) -> FlowHandle:
        """`enqueue` for async programs."""
        if self._session is not None:
            return self._handle(await ajoined(self._session).run(self._statement(idempotency_key, None)))
        await self._app.async_database.facts_and_time()
        statement = self._statement(idempotency_key, self._app._ids)  # noqa: SLF001 - likewise
        return self._handle(await self._app.async_database.run(statement))

    def _statement(self, key: str | None, ids: Ids | None) -> Statement[list[Enqueued]]:
        check_text("idempotency_key", key, KEY_LENGTH_MAX)
        if not self._nodes:
            raise JobRejected(f"flow {self.name} has no jobs; add some with flow.add(...)")
        awaited = {name for node in self._nodes for name in node.after}
        args = {
            "flow": self.name,
            "names": [node.name for node in self._nodes],
            "leaves": [node.name for node in self._nodes if node.name not in awaited],
        }
        root = Submission(
            COLLECT,
            jsontext.encode_args(args, f"flow {self.name}"),
            queue=self._queue or self._nodes[0].job.queue,
            idempotency_key=key,
            id=None if ids is None or key is not None else ids.new(),
        )
        return graphs.enqueue_flow(root, self._nodes, appears_late=ids is None)

    def _handle(self, enqueued: list[Enqueued]) -> FlowHandle:
        root, *others = enqueued
        app = cast("Looks", self._app)
        pairs = list(zip(self._nodes, others, strict=True))
        self._app.enqueued.update([node.job.queue or "default" for node, one in pairs if one.created])
        jobs = {
            node.name: JobHandle[Any](app, one.job_id, created=one.created).reading(self._app.returned_by(node.job.task))
            for node, one in pairs
        }
        return FlowHandle(app, root.job_id, jobs, created=root.created)


class Graphs:
    """What an application does with graphs."""

    tasks: dict[str, Task[..., Any]]
    enqueued: Counter[str]
    _ids: Ids

    if TYPE_CHECKING:

        @property
        def database(self) -> Database: ...
        @property
        def async_database(self) -> AsyncDatabase: ...
        def returned_by(self, task: str) -> Any: ...

    def flow(self, name: str = "flow", *, queue: str | None = None) -> Flow:
        """A graph of jobs: `flow.add(…)` collects them, and only `flow.enqueue()` enqueues them.

        :param name: For people to see.
        :param queue: Where the job runs that collects the results at the end. Default: the queue of the first job.
        """
        check_text("the name of a flow", name, _NAME_LENGTH_MAX)
        Options(queue=queue)
        return Flow(self, name, queue)


async def collect(job: Job, flow: str, names: list[str], leaves: list[str]) -> dict[str, Json]:
    """The task of a flow's root: once all jobs have ended, give the results of those that no other comes after."""
    program = job._program()  # noqa: SLF001 - it is a part of the engine
    if not program.is_known:
        rows: Any = await job._run(verbs.history(job.id))  # noqa: SLF001 - written when it was enqueued, by no attempt
        program.know(rows)
    known = program.came_to(_JOBS, "children", "jobs", None)
    if known is None:
        raise ConfigError(f"job {job.id} is not the root of a flow; enqueue one with app.flow(...)")
    taken = await job._write(verbs.collect_outcomes(job._hold.lease, _JOBS))  # noqa: SLF001
    if taken.status == "open":
        raise program.root.suspend([{"number": _JOBS, "kind": "children", "name": "jobs", "policy": "raise"}])
    failed = {int(index): found for index, found in taken.result["failed"].items()}
    if failed:
        reasons = "; ".join(
            f"{names[index]} {found['state']}: {found['error']}"[:500] for index, found in sorted(failed.items())
        )
        errors = {index: str(found["error"]) for index, found in failed.items()}
        raise ChildFailed(f"flow {flow}: {len(failed)} of {len(names)} jobs did not succeed: {reasons}", errors=errors)
    return await _results(job, known.call_id, names, leaves)


async def _results(job: Job, call_id: int, names: list[str], leaves: list[str]) -> dict[str, Json]:
    """By reference, if they do not fit into one result: then read them through the handles of the jobs."""
    results: dict[str, Json] = {}
    behind, wanted = -1, set(leaves)
    limit, size = (await job._database.facts()).result_bytes_max, 2  # noqa: SLF001
    while True:
        page = await job._run(verbs.outcomes(call_id, behind, _PAGE))  # noqa: SLF001
        for one in page:
            name = names[one.index]
            if name in wanted:
                text = jsontext.encode({name: one.result}, name)
                reference = {"job": str(one.job_id)}
                fits = size + len(text.encode()) <= limit - 200 * (len(leaves) - len(results))
                results[name] = one.result if fits else reference
                size += len(text.encode()) if fits else len(jsontext.encode({name: reference}, name))
        if len(page) < _PAGE:
            return results
        behind = page[-1].index


def built_in(app: Any) -> Task[..., Any]:
    """The task of roots, for an application."""
    return Task(app, collect, COLLECT, Options())

"""Tasks: functions that can be enqueued. Arguments are checked against the signature before they are sent."""

from __future__ import annotations

import inspect
import re
from copy import copy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, get_args

from faultline.app.blocking_job import BlockingJob
from faultline.app.enqueue_in_session import EnqueuesIn, JoinedTask, session_of
from faultline.app.job import Job
from faultline.app.parameters import Parameters, Results, function_of
from faultline.app.processes import Processes, check_function, processes_of
from faultline.attempt.backoff import check_backoff
from faultline.attempt.options import Options, check_options, check_seconds, check_text, seconds
from faultline.attempt.storable_text import text_of
from faultline.attempt.templates import Template
from faultline.attempt.unawaited import must_await
from faultline.attempt.uniqueness import Keys, unique_of
from faultline.core.bounds import DELAY_SECONDS_MAX, TASK_LENGTH_MAX
from faultline.core.errors import ConfigError, JobRejected
from faultline.core.limits import check_group
from faultline.core.model import Submission
from faultline.store import jsontext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import TypeAliasType

    from faultline.app.batch_functions import Batch
    from faultline.app.enqueue_in_session import AnySession
    from faultline.app.handle import JobHandle
    from faultline.attempt.backoff import Backoff, Rules
    from faultline.attempt.options import Duration, TaskOptions
    from faultline.core.model import Json

P = ParamSpec("P")
R = TypeVar("R")
Called_co = TypeVar("Called_co", covariant=True)

_FITS_MAX = 1000
#: The fields of a submission after task and arguments.
_BEHIND_ARGS = fields(Submission)[2:]
_JOB = re.compile(r"\b(Blocking)?Job\b")


class Route:
    """Where jobs of a task go that names no queue. Shared by a task and its copies with other options."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        #: A declared queue whose patterns fit the task's name; None: the default queue.
        self.queue: str | None = None


class Enqueues(EnqueuesIn, Protocol):
    """What a task needs of its application."""

    def enqueue_many(self, submissions: Iterable[Submission]) -> list[JobHandle[Any]]: ...

    async def aenqueue_many(self, submissions: Iterable[Submission]) -> list[JobHandle[Any]]: ...


class Task(Generic[P, R]):
    """A registered function. Calling it calls the function; `enqueue` enqueues a job that runs it."""

    def __init__(
        self,
        app: Enqueues,
        fn: Callable[..., Any],
        name: str,
        options: Options,
        *,
        timeout: Duration | None = None,
        backoff: Backoff | Callable[[int], Duration] | None = None,
        group: str | None = None,
        rules: Rules | None = None,
        executor: Processes | str | None = None,
    ) -> None:
        check_text("the name of a task", name, TASK_LENGTH_MAX)
        check_seconds("timeout", timeout, 0.001, DELAY_SECONDS_MAX)
        #: The name under which jobs are stored.
        self.name = name
        #: How long one attempt may take, in seconds; None: no limit.
        self.timeout_seconds = seconds(timeout)
        check_backoff(name, backoff)
        #: How long to wait after a failed attempt. None: the doubling default.
        self.backoff = backoff
        #: What is stored of an error that it raised.
        self.error_text: Callable[[BaseException], str] = text_of
        #: After which exceptions there is another attempt. None: after all.
        self.rules = rules
        self.fn = fn
        self._app = app
        self.route = Route()
        self.signature, self.takes_job = _enqueued_signature(fn, name)
        #: The group of its jobs, unless they are given another; None: they have none.
        self._group = None if group is None else Template(group, self.signature, f"the group of task {name}")
        self._take(options)
        self.parameters = Parameters(fn, self.signature, name)
        self.results = Results(fn, name)
        self.is_async = is_async(fn, name)
        if self.takes_job:
            _check_kind_of_job(fn, name, is_async=self.is_async)
        #: How many of its jobs run together; None: each runs by itself.
        self.batch: Batch | None = None
        #: How it runs in processes of its own; None: on the event loop, or in a thread.
        self.processes = processes_of(executor, name)
        if self.processes is not None:
            check_function(fn, name, is_async=self.is_async, takes_job=self.takes_job)
        parameters = self.signature.parameters.values()
        self._positional = [one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        self._known_fits: set[tuple[str, ...]] = set()
        #: Names of arguments that match the function and are passed as they are. Looked up for every job that runs.
        self.plain: set[tuple[str, ...]] = set()

    def _take(self, options: Options) -> None:
        self._options = options
        self._routed = self.route.queue
        unique = unique_of(options.unique)
        #: What its jobs are unique by; None: they are not.
        self._unique = None if unique is None else Keys(unique, self.signature, self.name)
        given = self.submitted()
        #: What all its submissions share: the fields after task and arguments, in their order.
        self._in_common = tuple(given.get(field.name) for field in _BEHIND_ARGS)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    @property
    def queue(self) -> str:
        """The queue of its jobs."""
        return str(self._options.queue or self.route.queue or "default")

    def submitted(self) -> dict[str, Any]:
        """The options of its jobs, as fields of a `Submission`."""
        given = self._options.submitted()
        if self._unique is not None:
            given["unique"] = self._unique.subscribed()
        return given if given["queue"] is not None else given | {"queue": self.route.queue}

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def check(self, args: dict[str, Any]) -> None:
        """Raise TypeError unless these arguments match the function. Checked once for each set of names."""
        names = tuple(args)
        if names not in self._known_fits:
            self.signature.bind(**args)
            if len(self._known_fits) < _FITS_MAX:
                self._known_fits.add(names)

    def accept(self, args: dict[str, Any]) -> dict[str, Any]:
        """Stored arguments as the function takes them; TypeError or `Misfit` unless they match it.

        :param args: As they are stored.
        """
        self.check(args)
        if self.parameters.are_read:
            return self.parameters.arguments(args)
        if len(self.plain) < _FITS_MAX:
            self.plain.add(tuple(args))
        return args

    def options(self, **words: Unpack[TaskOptions]) -> Task[P, R]:
        """The same task with other options, for the next enqueue: `task.options(delay=60).enqueue(42)`.

        :param words: See `TaskOptions`.
        """
        check_options(words)
        if "{" in str(words.get("group", "")):
            self._refuse_template(str(words["group"]))
        other = copy(self)
        other._take(replace(self._options, **words))  # noqa: SLF001 - another of ourselves
        return other

    def _refuse_template(self, key: str) -> None:
        """Options name a group itself. One with the name of an argument in braces was meant to be filled."""
        named = [name for name in self.signature.parameters if f"{{{name}}}" in key or f"{{{name}." in key]
        if named:
            raise JobRejected(
                f"group {key!r:.60} in options of task {self.name} would be that very text; put the template into"
                f" @app.task(group=…), or fill it: options(group=f{key!r:.60})"
            )

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Submission:
        """One job for `enqueue_many`, with its arguments checked.

        :param args: Positional arguments of the function, without its `job`.
        :param kwargs: Named arguments of the function.
        """
        return self._submission(args, kwargs)

    def bind_each(self, items: Iterable[Any]) -> list[Submission]:
        """One job for each item, as `bind(item)` makes it. For thousands this takes a third of the time.

        :param items: The argument of each job.
        """
        items = list(items)
        if not items or not self._positional or self.parameters.are_read or self._differs:
            return [self._submission((item,), {}) for item in items]
        first = self._submission((items[0],), {})  # raises if the function does not take one argument
        texts = jsontext.encode_each(self._positional[0], items, self.parameters.about)
        return [Submission(first.task, text, *self._in_common) for text in texts]

    def using(self, session: AnySession) -> JoinedTask[P, R]:
        """Enqueue in the transaction of your session: `charge.using(session).enqueue(42)`.

        The job exists once that transaction commits, and never if it is rolled back.

        :param session: A session or connection of psycopg, asyncpg, psycopg2, SQLAlchemy or Django.
        """
        return JoinedTask(self, self._app, session_of(session))

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job.

        :param args: Positional arguments of the function, without its `job`.
        :param kwargs: Named arguments of the function.
        """
        return self._app.enqueue_many([self._submission(args, kwargs)])[0].reading(self.returns)

    @must_await
    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` for async programs."""
        return (await self._app.aenqueue_many([self._submission(args, kwargs)]))[0].reading(self.returns)

    @property
    def returns(self) -> Any:
        """What its results are read as, by its annotation."""
        return self.results.annotation

    def forget_types(self) -> None:
        """Look at its annotations again: another type is registered."""
        self.parameters.forget()
        self.results.forget()
        self.plain.clear()

    def read(self, result: Json) -> R:
        """A stored result as the annotation of the function says.

        :param result: As `JobHandle.job().result` has it.
        """
        found: R = self.results.read(result)
        return found

    def _submission(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission:
        given = dict(zip(self._positional, args, strict=False))
        try:
            if len(given) < len(args) or not given.keys().isdisjoint(kwargs):
                self.signature.bind(*args, **kwargs)  # raises the right TypeError
            given |= kwargs
            self.check(given)
        except TypeError as error:
            raise JobRejected(f"{self.name}{self.signature}: {error}") from error
        if self._routed is not self.route.queue:
            self._take(self._options)  # a queue was declared since
        submission = Submission(self.name, self.parameters.text(given), *self._in_common)
        if self._group is not None and submission.group is None:
            submission.group = self.filled_group(given)
        if self._unique is not None:
            submission.unique = self._unique.of(given)
        return submission

    @property
    def _differs(self) -> bool:
        """Whether its jobs differ by more than their arguments."""
        return self.group_template is not None or self._unique is not None

    def filled_group(self, given: Mapping[str, Any]) -> str | None:
        """The group of a job with these arguments, by the task's template."""
        if self._group is None:
            return None
        key = self._group.fill(given)
        check_group(key, f"the group of task {self.name}, {self._group.text!r} filled,")
        return key

    def filled_unique(self, given: Mapping[str, Any]) -> Json:
        """What a job with these arguments is unique by; None: it is not."""
        return None if self._unique is None else self._unique.of(given)

    def ticking(self, job: Submission, argument: str) -> Submission:
        """A job of a schedule that gives it this argument: the database fills what is made from it, at each tick.

        :param job: As `bind` makes it.
        :param argument: The name of a parameter.
        """
        group = self.group_template
        if group is not None and argument in group.names:
            job.group = group.stored()  # a template, as subscriptions have it
        if self._unique is not None and argument in self._unique.names:
            job.unique = self._unique.subscribed()
        return job

    @property
    def group_template(self) -> Template | None:
        """What the groups of its jobs are made from, unless its options name one."""
        return None if self._options.group is not None else self._group


#: mypy takes this for True, and no other type checker does.
MYPY = False

if TYPE_CHECKING:
    # What a call of a plain function returns. mypy forgets the parameters and the result of a function with an `Any` in its
    # signature if it fits two overloads that return different types. Plain functions fit two, so there it is Any.
    if MYPY:  # noqa: SIM108 - type checkers read no other form
        Returned = TypeAliasType("Returned", Any, type_params=(R,))
    else:
        Returned = TypeAliasType("Returned", R, type_params=(R,))

    class DecoratedTask(Task[P, R], Generic[P, R, Called_co]):
        """A task as type checkers see it that know its function: a call of it returns what the function returns, which is
        a coroutine if that is async. `R` is the result of its jobs.
        """

        def __call__(self, /, *args: Any, **kwargs: Any) -> Called_co: ...

        def options(self, **words: Unpack[TaskOptions]) -> DecoratedTask[P, R, Called_co]: ...


def is_async(fn: Callable[..., Any], name: str) -> bool:
    """Whether it runs on the event loop. Refuses what neither the loop nor a thread can run."""
    call = function_of(fn)
    inside = inspect.unwrap(call)
    if inspect.isgeneratorfunction(inside) or inspect.isasyncgenfunction(inside):
        raise ConfigError(f"task {name}: a task cannot be a generator, because nothing would iterate it; return a value")
    if inspect.iscoroutinefunction(call):
        return True
    if inspect.iscoroutinefunction(inside):
        raise ConfigError(
            f"task {name}: a decorator that is not async wraps an async function. Make its wrapper `async def` and await "
            "the function there; or, if the wrapper runs the function itself, `del wrapper.__wrapped__`"
        )
    return False


def _enqueued_signature(fn: Callable[..., Any], name: str) -> tuple[inspect.Signature, bool]:
    """The parameters without the `job` that the worker passes; and whether there is one."""
    parameters = list(inspect.signature(fn).parameters.values())
    takes_job = bool(parameters) and _is_job(parameters[0])
    given = parameters[1:] if takes_job else parameters
    for parameter in given:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise ConfigError(
                f"task {name}: parameter {parameter.name} is positional-only or variadic, but arguments are stored "
                "by name, as a JSON object. Use named parameters"
            )
        if _is_job(parameter, named=False):
            raise ConfigError(
                f"task {name}: the worker passes the job as the first argument; make {parameter.name} the first parameter"
            )
    return inspect.Signature(given), takes_job


def _check_kind_of_job(fn: Callable[..., Any], name: str, *, is_async: bool) -> None:
    """`Job` is for `async def`, `BlockingJob` for `def`: with the other, its calls would never run or block the loop."""
    parameter = next(iter(inspect.signature(fn).parameters.values()))
    written = parameter.annotation
    if isinstance(written, str):
        named = {found[0] for found in _JOB.finditer(written)}
    else:
        named = {one.__name__ for one in (written, *get_args(written)) if one in (Job, BlockingJob)}
    wanted, other = ("Job", "BlockingJob") if is_async else ("BlockingJob", "Job")
    if named == {other}:
        kind = "async def" if is_async else "def"
        raise ConfigError(
            f"task {name} is `{kind}` and takes {parameter.name}: {other}; write `{parameter.name}: {wanted}`, or make the"
            f" task `{'def' if is_async else 'async def'}`"
        )


def _is_job(parameter: inspect.Parameter, *, named: bool = True) -> bool:
    """By its annotation; if it has none and `named`, by its name."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return named and parameter.name == "job"
    if isinstance(annotation, str):
        return _JOB.search(annotation) is not None
    return any(one in (Job, BlockingJob) for one in (annotation, *get_args(annotation)))

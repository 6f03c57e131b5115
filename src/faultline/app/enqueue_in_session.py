"""What joins a caller's transaction: `task.using(session)`, `app.using(session)`. It commits with it, or never exists."""

# ruff: noqa: SLF001 - it is a part of the application
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack

from faultline.attempt.transaction import JobTransaction
from faultline.attempt.unawaited import must_await
from faultline.store.external_sessions import adapted, ajoined, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from faultline.app.handle import JobHandle
    from faultline.attempt.async_transaction import Transaction
    from faultline.attempt.blocking_transaction import BlockingTransaction
    from faultline.attempt.options import TaskOptions
    from faultline.attempt.transaction import JoinedTransaction
    from faultline.core.model import Submission
    from faultline.store.external_sessions import AsyncJoined, Joined, Session

    #: A session of the caller, or the transaction of a job.
    AnySession: TypeAlias = "Session | Transaction | BlockingTransaction | JoinedTransaction"

P = ParamSpec("P")
R = TypeVar("R")


def session_of(given: AnySession) -> Joined | AsyncJoined:
    """Refuses at once what is no session: the mistake is where it was given, not where it is used."""
    return adapted(given.connection if isinstance(given, JobTransaction) else given)


class JoinedTask(Generic[P, R]):
    """A task whose jobs join the transaction of a session. Made by `task.using(session)`."""

    def __init__(self, task: Binds[P], app: EnqueuesIn, session: Joined | AsyncJoined) -> None:
        self._task = task
        self._app = app
        self._session = session

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job in the session's transaction.

        :param args: Positional arguments of the function, without its `job`.
        :param kwargs: Named arguments of the function.
        """
        submission = self._task.bind(*args, **kwargs)
        return self._app._enqueue_in(joined(self._session), [submission])[0].reading(self._task.returns)

    @must_await
    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` for async sessions."""
        submission = self._task.bind(*args, **kwargs)
        return (await self._app._aenqueue_in(ajoined(self._session), [submission]))[0].reading(self._task.returns)


class JoinedApp:
    """What an application does in the transaction of a session. Made by `app.using(session)`."""

    def __init__(self, app: Any, session: Joined | AsyncJoined) -> None:
        self._app = app
        self._session = session

    def enqueue(self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[TaskOptions]) -> JobHandle[Any]:
        """As `app.enqueue`.

        :param task: The name of the task.
        :param args: The arguments by name.
        :param options: How the job is stored: see `TaskOptions`.
        """
        return self.enqueue_many([self._app._by_name(task, args, options)])[0]

    @must_await
    async def aenqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[TaskOptions]
    ) -> JobHandle[Any]:
        """`enqueue` for async sessions."""
        return (await self.aenqueue_many([self._app._by_name(task, args, options)]))[0]

    def enqueue_many(self, submissions: Iterable[Submission]) -> list[JobHandle[Any]]:
        """As `app.enqueue_many`.

        :param submissions: Jobs as `task.bind(…)` makes them.
        """
        handles: list[JobHandle[Any]] = self._app._enqueue_in(joined(self._session), submissions)
        return handles

    @must_await
    async def aenqueue_many(self, submissions: Iterable[Submission]) -> list[JobHandle[Any]]:
        """`enqueue_many` for async sessions."""
        handles: list[JobHandle[Any]] = await self._app._aenqueue_in(ajoined(self._session), submissions)
        return handles

    def publish(self, topic: str, payload: Any = None, *, idempotency_key: str | None = None) -> list[JobHandle[Any]]:
        """As `app.publish`.

        :param topic: Which topic.
        :param payload: A dict or a dataclass. Its fields become the arguments of the tasks.
        :param idempotency_key: Published again with the same key, each task gets no second job.
        """
        handles: list[JobHandle[Any]] = self._app._publish_in(joined(self._session), topic, payload, idempotency_key)
        return handles

    @must_await
    async def apublish(self, topic: str, payload: Any = None, *, idempotency_key: str | None = None) -> list[JobHandle[Any]]:
        """`publish` for async sessions."""
        handles: list[JobHandle[Any]] = await self._app._apublish_in(ajoined(self._session), topic, payload, idempotency_key)
        return handles

    def signal(
        self,
        job_id: UUID | str | None,
        name: str,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
        key: str | None = None,
        for_call: str | int | None = None,
        by: str | None = None,
    ) -> bool:
        """As `app.signal`.

        :param job_id: Which job; None with an `idempotency_key`.
        :param name: The name for which the task calls `job.receive`.
        :param payload: What it carries: JSON, or a dataclass of it.
        :param idempotency_key: The key with which the job was enqueued, instead of its id.
        :param key: The same key counts once per job, however often it is sent.
        :param for_call: The number of the wait that it answers. No other receives it.
        :param by: Who sends it. The journal then records it, with the login.
        """
        doing = self._app._signalling(job_id, name, payload, idempotency_key, key, for_call, by)
        return bool(joined(self._session).run(doing))

    @must_await
    async def asignal(
        self,
        job_id: UUID | str | None,
        name: str,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
        key: str | None = None,
        for_call: str | int | None = None,
        by: str | None = None,
    ) -> bool:
        """`signal` for async sessions."""
        doing = self._app._signalling(job_id, name, payload, idempotency_key, key, for_call, by)
        return bool(await ajoined(self._session).run(doing))


class Binds(Protocol[P]):
    """What is needed of a task."""

    @property
    def returns(self) -> Any: ...

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Submission: ...


class EnqueuesIn(Protocol):
    """What is needed of its application."""

    def _enqueue_in(self, session: Joined, submissions: Iterable[Submission]) -> list[JobHandle[Any]]: ...

    async def _aenqueue_in(self, session: AsyncJoined, submissions: Iterable[Submission]) -> list[JobHandle[Any]]: ...

"""What can be made a task, and what of its function's parameters is stored."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from faultline import BlockingJob, ConfigError, Faultline, Job


def test_two_tasks_cannot_have_one_name(app: Faultline) -> None:
    @app.task
    def charge() -> None: ...

    with pytest.raises(ConfigError, match="a task named charge is already registered"):

        @app.task(name="charge")
        def another() -> None: ...


def test_parameters_without_a_name_to_store_them_under_are_refused(app: Faultline) -> None:
    with pytest.raises(ConfigError, match="parameter numbers is positional-only or variadic"):

        @app.task
        def total(*numbers: int) -> None: ...

    with pytest.raises(ConfigError, match="parameter x is positional-only"):

        @app.task
        def square(x: int, /) -> None: ...


def test_what_no_worker_could_run_is_refused_when_it_is_made_a_task(app: Faultline) -> None:
    def logged(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper(*args: Any, **words: Any) -> Any:
            return fn(*args, **words)

        return wrapper

    async def hidden(n: int) -> int:
        return n

    def generated(n: int) -> Any:
        yield n

    async def streamed(n: int) -> Any:
        yield n

    def late(n: int, job: BlockingJob) -> None: ...
    def late_or_none(n: int, job: Job | None = None) -> None: ...

    with pytest.raises(ConfigError, match="wraps an async function"):
        app.task(name="hidden")(logged(hidden))
    for fn in (generated, streamed, logged(generated)):
        with pytest.raises(ConfigError, match="a task cannot be a generator"):
            app.task(name="generated")(fn)
    for task in (late, late_or_none):
        with pytest.raises(ConfigError, match="make job the first"):
            app.task(task)
    assert app.tasks == {}


def test_an_object_whose_call_is_async_is_an_async_task(app: Faultline) -> None:
    class Mailer:
        async def __call__(self, n: int) -> int:
            return n

        async def send(self, n: int) -> int:
            return n

    assert app.task(name="mailer")(Mailer()).is_async
    assert app.task(name="send")(Mailer().send).is_async
    assert app.task(name="partial")(functools.partial(Mailer().send, 1)).is_async
    assert app.task(name="partial of an object")(functools.partial(Mailer(), 1)).is_async


def test_further_keyword_arguments_are_stored_beside_the_others(app: Faultline) -> None:
    @app.task
    def note(title: str, **tags: str) -> None: ...

    handle = note.enqueue("a", colour="red")

    assert app.job(handle.id).args == {"title": "a", "colour": "red"}


def test_a_job_parameter_is_recognised_by_its_type_or_its_name(app: Faultline) -> None:
    @app.task
    def by_name(job, x: int) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    @app.task
    async def by_type(anything: Job, x: int) -> None: ...

    @app.task
    def neither(x: int) -> None: ...

    assert [task.takes_job for task in (by_name, by_type, neither)] == [True, True, False]
    assert [list(task.signature.parameters) for task in (by_name, by_type, neither)] == [["x"]] * 3


def test_a_parameter_may_be_named_self(app: Faultline) -> None:
    @app.task
    def about(self: str, name: str) -> None: ...

    assert app.job(about.enqueue(self="me", name="you").id).args == {"self": "me", "name": "you"}


def test_a_function_without_a_name_needs_one(app: Faultline) -> None:
    nameless = functools.partial(print, "hello")

    with pytest.raises(ConfigError, match="give the task one with name="):
        app.task(nameless)


@pytest.mark.parametrize("name", ["bad\ud800", "bad\x00", "n" * 201])
def test_a_name_that_cannot_be_stored_is_refused_where_the_task_is_registered(app: Faultline, name: str) -> None:
    with pytest.raises(ConfigError, match="the name of a task"):
        app.task(name=name)(lambda: None)

    assert app.tasks == {}

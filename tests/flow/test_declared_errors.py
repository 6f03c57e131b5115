"""A step that fails gives the program the same error in every run: `StepFailed`, or the exception that the step declares."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from faultline import ChildFailed, ConfigError, Faultline, Job, JobFailed, Retries, SignalTimeout, StepFailed
from faultline.values import annotations as annotated
from faultline.values import reading
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, deploys, ended, journals, signals, waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline import Transaction


class Declined(Exception):
    """As most are written: a message for people, and an attribute for programs."""

    def __init__(self, code: int, amount: Decimal) -> None:
        super().__init__(f"declined with {code}")
        self.code = code
        self.amount = amount


class Stolen(Declined):
    pass


class Named(Exception):
    """Takes nothing but names."""

    def __init__(self, *, card: str, at: datetime) -> None:
        super().__init__()
        self.card = card
        self.at = at

    def __str__(self) -> str:
        return f"{self.card} at {self.at}"


@dataclass
class Refused(Exception):
    reason: str
    amounts: tuple[Decimal, ...] = ()


@dataclass(slots=True)
class Slotted(Exception):
    reason: str
    until: datetime


class Unstorable(Exception):
    def __init__(self, response: object) -> None:
        super().__init__("no")
        self.response = response


class Other:
    class Declined(Exception):
        """Has the name of another one."""


def described(error: BaseException) -> dict[str, Any]:
    """All that a program can ask of an error."""
    return {
        "class": type(error).__name__,
        "args": [str(one) for one in error.args],
        "attributes": {name: repr(value) for name, value in sorted(vars(error).items()) if not name.startswith("_")},
        "text": str(error),
        "notes": list(getattr(error, "__notes__", ())),
        "cause": repr(error.__cause__),
        "context": repr(error.__context__),
    }


def in_every_run(app: Faultline, kind: str, step: Any, *, errors: Any = Exception, **options: Any) -> list[dict[str, Any]]:
    """What three runs of a program get from a step that fails."""
    seen: list[dict[str, Any]] = []

    @task_of(app, kind, **options)
    async def program(job: Job) -> None:
        try:
            await job.do(step)
        except errors as error:
            seen.append(described(error))
        await job.sleep(0.01)
        await job.sleep(0.01)

    ended(app, program.enqueue())
    assert len(seen) == 3
    return seen


@KINDS
def test_the_cause_of_a_failed_step_takes_no_run_another_way(app: Faultline, kind: str) -> None:
    done: list[str] = []

    @app.step
    def charge() -> str:
        raise Declined(51, Decimal(5))

    @app.step
    def note(what: str) -> str:
        done.append(what)
        return what

    @task_of(app, kind)
    async def program(job: Job) -> str:
        try:
            return await job.do(charge)
        except StepFailed as error:
            answer = await job.do(note, "refund" if isinstance(error.__cause__, Declined) else "alarm")
        await job.sleep(0.01)
        return answer

    assert ended(app, program.enqueue()) == "alarm"
    assert done == ["alarm"]


@KINDS
def test_an_error_that_is_not_declared_is_the_same_step_failed_in_every_run(app: Faultline, kind: str) -> None:
    @app.step(retries=Retries(1, first=0))
    def charge() -> None:
        raise Declined(51, Decimal(5))

    first, *later = in_every_run(app, kind, charge)

    assert later == [first, first]
    assert first["class"] == "StepFailed"
    assert first["text"] == "step charge failed after 2 tries: Declined: declined with 51"
    assert first["attributes"] == {"kind": "'Declined'", "step": "'charge'"}
    assert first["cause"] == first["context"] == "None"
    # For people: where it was raised.
    (note,) = first["notes"]
    assert "in step charge" in note
    assert __file__ in note


RAISED: list[tuple[Any, Callable[[], Exception]]] = [
    (Declined, lambda: Declined(51, Decimal("5.10"))),
    (Declined, lambda: Stolen(43, Decimal(7))),
    (Named, lambda: Named(card="4711", at=datetime(2026, 1, 2, tzinfo=UTC))),
    (Refused, lambda: Refused("funds", (Decimal("1.5"), Decimal(2)))),
    (Refused, lambda: Refused(reason="by name")),
    (Slotted, lambda: Slotted("funds", datetime(2026, 1, 2, tzinfo=UTC))),
    ((Declined, Other.Declined), lambda: Other.Declined("the other", 1, None, {"a": [1.5]})),
    (FileNotFoundError, lambda: FileNotFoundError(2, "No such file", "/nowhere")),
    (LookupError, lambda: KeyError("missing")),
    (TimeoutError, TimeoutError),
]


@KINDS
@pytest.mark.parametrize(("declared", "make"), RAISED, ids=lambda one: getattr(one, "__name__", None))
def test_a_declared_error_is_itself_in_every_run(
    app: Faultline, kind: str, declared: Any, make: Callable[[], Exception]
) -> None:
    made = make()
    ran: list[int] = []

    @app.step(raises=declared, retries=3)
    def charge() -> None:
        ran.append(1)
        raise make() from OSError("a cause that no later run has")

    first, *later = in_every_run(app, kind, charge, errors=declared)

    assert later == [first, first]
    assert ran == [1]  # an answer, not a failure: it is not tried again
    assert first["cause"] == first["context"] == "None"
    assert {name: first[name] for name in ("class", "args", "attributes", "text")} == {
        name: described(made)[name] for name in ("class", "args", "attributes", "text")
    }
    assert "in step charge" in first["notes"][-1]


def test_the_errors_that_come_back_are_of_the_declared_classes(app: Faultline) -> None:
    seen: list[BaseException] = []

    @app.step(raises=(Declined, Other.Declined))
    def charge(which: str) -> None:
        raise Other.Declined("other") if which == "other" else Stolen(1, Decimal(2))

    @app.task
    async def program(job: Job) -> None:
        for which in ("other", "own"):
            try:
                await job.do(charge, which)
            except (Declined, Other.Declined) as error:
                seen.append(error)
        await job.sleep(0.01)

    ended(app, program.enqueue())

    assert [type(error) for error in seen] == [Other.Declined, Stolen] * 2
    assert all(isinstance(error.amount, Decimal) for error in seen if isinstance(error, Stolen))


@KINDS
def test_other_errors_of_a_step_that_declares_some_are_tried_again(app: Faultline, kind: str) -> None:
    ran: list[int] = []

    @app.step(raises=Declined, retries=Retries(3, first=0))
    def charge() -> None:
        ran.append(1)
        raise (ConnectionError("away") if len(ran) < 3 else Stolen(43, Decimal(1)))

    first, *later = in_every_run(app, kind, charge, errors=Declined)

    assert len(ran) == 3
    assert later == [first, first]


@KINDS
@pytest.mark.parametrize("data", [object(), Decimal(1), "\x00", "x" * 2_000_000, {1: 2}], ids=lambda one: type(one).__name__)
def test_a_declared_error_that_cannot_be_stored_is_refused_in_every_run_alike(
    app: Faultline, kind: str, data: object
) -> None:
    @app.step(raises=Unstorable)
    def charge() -> None:
        raise Unstorable(data)

    first, *later = in_every_run(app, kind, charge, errors=StepFailed)

    assert later == [first, first]
    assert first["attributes"]["kind"] == "'Unstorable'"
    assert first["text"].startswith("step charge failed: Unstorable: no. It is declared, but cannot be remembered")
    assert "response" in first["text"] or "bytes" in first["text"]
    assert "raise one of your own" in first["text"]


def test_a_declared_error_that_cannot_be_stored_fails_the_attempt_with_that_text(app: Faultline) -> None:
    @app.step(raises=Unstorable)
    def charge() -> None:
        raise Unstorable(object())

    @app.task(max_attempts=1)
    async def program(job: Job) -> None:
        try:
            await job.do(charge)
        except Unstorable:
            pytest.fail("no later run could have it")

    error = ended(app, program.enqueue())

    assert isinstance(error, JobFailed)
    assert "attribute response" in str(error)


@KINDS
def test_a_declared_error_that_leaves_the_program_fails_the_attempt_as_itself(app: Faultline, kind: str) -> None:
    ran: list[int] = []

    @app.step(raises=Declined)
    def charge() -> None:
        ran.append(1)
        raise Stolen(43, Decimal(1))

    @task_of(app, kind, give_up_on=Declined)
    async def program(job: Job) -> None:
        await job.do(charge)

    handle = program.enqueue()
    error = ended(app, handle)

    assert "Stolen: declined with 43" in str(error)
    assert "Not retried: give_up_on of the task has Declined" in str(handle.job().last_error)
    assert ran == [1]


@KINDS
def test_a_class_that_is_gone_leaves_a_step_failed_with_its_name(app: Faultline, kind: str) -> None:
    seen: list[str] = []

    class Gone(Exception):
        pass

    @app.step(raises=Gone, name="charge")
    def charge() -> None:
        raise Gone("away")

    @app.step(name="charge")
    def changed() -> None:
        raise AssertionError("it is remembered")

    @task_of(app, kind, name="program")
    async def before(job: Job) -> str:
        with contextlib.suppress(Gone):
            await job.do(charge)
        await job.sleep(0.2)
        return "before"

    @task_of(app, kind, name="after")
    async def after(job: Job) -> str:
        try:
            await job.do(changed)
        except StepFailed as error:
            seen.append(f"{error.kind}: {error}")
        await job.sleep(0.2)
        return "after"

    handle = before.enqueue()

    assert ended(app, handle, waits(app), deploys(app, "program", after.fn)) == "after"
    assert seen == ["Gone: step charge failed: Gone: away"]


@KINDS
def test_an_attribute_that_no_longer_fits_is_a_changed_program(app: Faultline, kind: str) -> None:
    class Declined(Exception):
        code: int

    @app.step(raises=Declined)
    def charge() -> None:
        error = Declined("no")
        error.code = 51
        raise error

    @task_of(app, kind)
    async def program(job: Job) -> int:
        code = 0
        try:
            await job.do(charge)
        except Declined as error:
            code = error.code
        await job.receive("go")
        return code

    handle = program.enqueue()

    async def change(_: object) -> None:
        annotate(list[str])

    async def back(_: object) -> None:
        annotate(int)

    def annotate(kind: Any) -> None:
        Declined.__annotations__["code"] = kind
        annotated.hints.cache_clear()
        reading.forget()

    story = (waits(app), change, signals(app, "go"), journals(app, "program_changed"), back)
    assert ended(app, handle, *story) == 51


@KINDS
def test_an_atomic_step_has_declared_errors_too_and_its_writes_are_undone(app: Faultline, kind: str) -> None:
    seen: list[Any] = []

    @app.step(raises=Declined)
    def charge(tx: Transaction, amount: int) -> int:
        raise Stolen(amount, Decimal(1))

    @app.step
    def fine(tx: Transaction, amount: int) -> Decimal:
        return Decimal(amount)

    @task_of(app, kind)
    async def program(job: Job) -> None:
        try:
            await job.atomic("charge", charge, 43)
        except Declined as error:
            seen.append(described(error))
        seen.append(await job.atomic("fine", fine, 3))
        await job.sleep(0.01)

    handle = program.enqueue()
    ended(app, handle)

    assert seen[:2] == seen[2:]
    assert (seen[0]["class"], seen[1]) == ("Stolen", Decimal(3))
    assert calls(app, handle)["1"]["outcome"] == "failed"


def test_an_atomic_step_cannot_be_tried_again_or_be_stopped(app: Faultline) -> None:
    @app.step(retries=2)
    def charge(tx: Transaction) -> None: ...

    @app.task(max_attempts=1)
    async def program(job: Job) -> None:
        await job.atomic("charge", charge)

    assert "job.atomic runs a step once, in the job's transaction" in str(ended(app, program.enqueue()))


@KINDS
def test_a_declared_error_that_leaves_a_saga_undoes_it(app: Faultline, kind: str) -> None:
    done: list[str] = []

    @app.step
    def book() -> str:
        done.append("book")
        return "room"

    @app.step
    def cancel(room: str | None) -> None:
        done.append(f"cancel {room}")

    @app.step(raises=Declined)
    def charge() -> None:
        done.append("charge")
        raise Stolen(43, Decimal(1))

    @task_of(app, kind)
    async def trip(job: Job) -> None:
        async with job.saga() as saga:
            await saga.do(book, undo=cancel)
            await job.sleep(0.01)
            await saga.do(charge)

    error = ended(app, trip.enqueue())

    assert done == ["book", "charge", "cancel room"]
    assert "the saga failed: declined with 43; undone by: cancel" in str(error)


@KINDS
def test_a_declared_error_that_a_saga_handles_undoes_nothing(app: Faultline, kind: str) -> None:
    done: list[str] = []

    @app.step
    def book() -> str:
        done.append("book")
        return "room"

    @app.step
    def cancel(room: str | None) -> None:
        done.append(f"cancel {room}")

    @app.step(raises=Declined)
    def charge() -> None:
        raise Stolen(43, Decimal(1))

    @task_of(app, kind)
    async def trip(job: Job) -> str:
        async with job.saga() as saga:
            room = await saga.do(book, undo=cancel)
            try:
                await saga.do(charge)
            except Stolen as error:
                room = f"{room}, to be paid: {error.amount}"
            await job.sleep(0.01)
        return room

    assert ended(app, trip.enqueue()) == "room, to be paid: 1"
    assert done == ["book"]


@KINDS
def test_an_undo_that_fails_with_a_declared_error_does_not_keep_others_from_running(app: Faultline, kind: str) -> None:
    done: list[str] = []

    @app.step
    def book(what: str) -> str:
        return what

    @app.step(raises=Declined)
    def cancel(result: str | None, what: str) -> None:
        done.append(what)
        if what == "flight":
            raise Stolen(43, Decimal(1))

    @task_of(app, kind, max_attempts=1)
    async def trip(job: Job) -> None:
        async with job.saga() as saga:
            await saga.do(book, "hotel", undo=cancel)
            await saga.do(book, "flight", undo=cancel)
            saga.fail("changed")

    error = ended(app, trip.enqueue())

    assert done == ["flight", "hotel", "flight"]  # undos have attempts of their own
    assert "not undone: declined with 43" in str(error)


def test_branches_beside_each_other_get_declared_errors(app: Faultline) -> None:
    seen: list[Any] = []

    @app.step(raises=Declined)
    def charge(code: int) -> None:
        raise Stolen(code, Decimal(1))

    @app.task
    async def program(job: Job) -> list[str]:
        async def one(code: int) -> str:
            try:
                await job.do(charge, code)
            except Stolen as error:
                await job.sleep(0.01)
                return f"{error.code} {error.amount}"
            return "charged"

        seen.append(await job.gather(job.branch(one, 1), job.branch(one, 2)))
        await job.sleep(0.01)
        return list(seen[-1])

    assert ended(app, program.enqueue()) == ["1 1", "2 1"]
    assert seen[0] == seen[1]


class Listed(Exception):
    def __init__(self, items: Any) -> None:
        super().__init__()
        self.items = items


@KINDS
def test_what_a_program_does_with_a_declared_error_is_not_remembered(app: Faultline, kind: str) -> None:
    seen: list[Any] = []

    @app.step(raises=(Listed,))
    def pick() -> None:
        raise Listed(["one"])

    @task_of(app, kind)
    async def program(job: Job) -> None:
        try:
            await job.do(pick)
        except Listed as error:
            seen.append(list(error.items))
            error.items.append("mine")
        await job.receive("go", bool)

    handle = program.enqueue()
    ended(app, handle, waits(app), signals(app, "go", True))

    assert seen == [["one"], ["one"]]


@KINDS
def test_errors_of_children_and_of_signals_are_the_same_in_every_run(app: Faultline, kind: str) -> None:
    seen: list[dict[str, Any]] = []

    @app.task(max_attempts=1)
    async def child() -> None:
        raise Declined(51, Decimal(1))

    @task_of(app, kind)
    async def program(job: Job) -> None:
        try:
            await job.call(child)
        except ChildFailed as error:
            seen.append(described(error))
        try:
            await job.receive("go", timeout=0.01)
        except SignalTimeout as error:
            seen.append(described(error))
        await job.sleep(0.01)

    ended(app, program.enqueue())

    # Some runs come to the child's failure alone.
    by_class: dict[str, list[dict[str, Any]]] = {}
    for one in seen:
        by_class.setdefault(one["class"], []).append(one)
    assert {name: len(found) > 1 for name, found in by_class.items()} == {"ChildFailed": True, "SignalTimeout": True}
    for found in by_class.values():
        assert all(one == found[0] for one in found)
        assert found[0]["cause"] == found[0]["context"] == "None"


def test_what_is_wrong_with_a_declaration_is_said_where_it_stands(app: Faultline) -> None:
    def refused(what: str, **words: Any) -> None:
        with pytest.raises(ConfigError, match=what):
            app.step(name="charge", **words)(lambda: None)

    refused(
        "step charge: raises takes classes of exceptions, such as \\(TimeoutError,\\), not 'Declined'", raises="Declined"
    )
    refused("step charge: raises takes classes of exceptions, .*, not <class 'KeyboardInterrupt'>", raises=KeyboardInterrupt)
    refused("step charge: raises has Exception, which every failure is; name the classes", raises=(Exception,))
    refused("step charge: raises is empty; leave it out", raises=())
    refused(
        "step charge: Retries\\(on=…\\) has Stolen, but what raises declares is an answer, and not tried again",
        raises=Declined,
        retries=Retries(3, on=Stolen),
    )
    app.step(raises=FileNotFoundError, retries=Retries(3, on=OSError))(lambda: None)  # all others are tried again
    twins = [type("Twin", (Exception,), {}) for _ in range(2)]
    refused("step charge: raises has two classes named Twin of the module", raises=tuple(twins))


def test_an_error_whose_class_has_a_twin_is_refused(app: Faultline) -> None:
    class Base(Exception):
        pass

    twins = [type("Twin", (Base,), {}) for _ in range(2)]

    @app.step(raises=Base)
    def charge() -> None:
        raise twins[0]("which?")

    first, *later = in_every_run(app, "async", charge)

    assert later == [first, first]
    assert "2 classes that inherit from Base are named" in first["text"]

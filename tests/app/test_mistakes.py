"""Mistakes in declarations and at run time: each is answered before anything is sent, with what to write instead.

What is declared in code and wrong is a `ConfigError`; what is submitted and wrong a `JobRejected`. Needs no database: its
address leads nowhere, so a value that slips by its check ends in another error.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

import faultline
from faultline import ConfigError, Faultline, FaultlineError, JobRejected, Limit, Rate
from tests.worker.working import logged

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from faultline import BlockingJob, Job

#: Without its types, which a type checker would hold against these calls.
faultline_: Any = faultline
JOB_ID = "0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"
NOW = datetime(2026, 11, 1, tzinfo=UTC)


class Alien:
    """No function takes it for anything."""

    def __repr__(self) -> str:
        return "<an alien>"


ALIENS: list[Any] = [Alien(), 3 + 4j, b"bytes", ["x", 1], {"x": 1}, float("nan"), 10**400]
#: By function: arguments that make sense. Each in turn is replaced by an alien.
GOOD: dict[str, dict[str, Any]] = {
    "queue": {"name": "q", "concurrency": 1, "rate": Rate(1), "each_group": Limit(), "groups": {}, "match": ()},
    "budget": {"name": "b", "rate": Rate(1)},
    "pause": {"name": "q", "reason": "r", "by": "b"},
    "resume": {"name": "q", "reason": "r", "by": "b"},
    "limits.set": {"queue": "q", "group": "g", "concurrency": 1, "rate": Rate(1), "weight": 1, "ordered": True, "by": "b"},
    "limits.reset": {"queue": "q", "group": "g", "by": "b", "reason": "r"},
    "limits.set_budget": {"name": "b", "rate": Rate(1), "by": "b", "reason": "r"},
    "limits.reset_budget": {"name": "b", "by": "b", "reason": "r"},
    "limits.read": {"queue": "q"},
    "schedules.remove": {"name": "s", "by": "b", "reason": "r"},
    "schedules.pause": {"name": "s", "by": "b", "reason": "r"},
    "schedules.resume": {"name": "s", "by": "b", "reason": "r"},
    "schedules.run_now": {"name": "s", "by": "b", "reason": "r"},
    "schedules.next": {"name": "s", "count": 5},
    "schedules.history": {"name": "s", "count": 5},
    "schedules.backfill": {"name": "s", "first": NOW, "last": NOW},
}
_RULES: dict[str, dict[str, Any]] = {"cron": {"cron": "* * * * *", "tz": "UTC"}, "every": {"every": 60}, "at": {"at": NOW}}
_POLICY: dict[str, Any] = {"catch_up": "all", "catch_up_seconds": 5, "overlap": "skip", "jitter": 5, "tick_arg": "tick"}
#: What cannot be told from what somebody may mean.
FINE = {("schedule", "args", "['x', 1]")}
DECLARES = ("queue", "budget", "schedule")


def task_of(app: Faultline, **words: Any) -> Any:
    @app.task(**words)
    async def send(tenant_id: int, to: str = "x", tick: datetime | None = None) -> None: ...

    return send


def called(app: Faultline, name: str, words: dict[str, Any]) -> None:
    if name == "schedule":
        app.schedule(**words)(task_of(app))
        return
    function: Any = app
    for part in name.split("."):
        function = getattr(function, part)
    found = function(**words)
    if inspect.isawaitable(found):
        asyncio.run(asyncio.wait_for(found, 5))


def _with_aliens() -> list[tuple[str, dict[str, Any], str]]:
    rows = [(name, good, parameter) for name, good in GOOD.items() for parameter in good]
    for kind, rule in _RULES.items():
        rows += [(f"schedule, {kind}", {"kwargs": {"tenant_id": 1}} | _POLICY | rule, one) for one in (*rule, *_POLICY)]
    rows += [("schedule, arguments", {"args": (1,), "kwargs": {}, "name": "s", "was": "t", "every": 60}, one)
             for one in ("args", "kwargs", "name", "was")]  # fmt: skip
    for kind, rule in _RULES.items():
        words = {"name": "s", "job": ..., "by": "b", "reason": "r"} | rule
        rows += [(f"schedules.set, {kind}", words, one) for one in words]
    return rows


@pytest.mark.parametrize(("name", "good", "parameter"), _with_aliens(), ids=lambda one: one if isinstance(one, str) else "")
@pytest.mark.parametrize("twin", ["", "a"], ids=["blocking", "async"])
def test_a_value_of_a_wrong_type_gets_a_clear_answer(name: str, good: dict[str, Any], parameter: str, twin: str) -> None:
    name = name.split(",", 1)[0]
    if twin and name in DECLARES:
        pytest.skip("declarations have no twin")
    expected = ConfigError if name in DECLARES else JobRejected
    place, _, verb = name.rpartition(".")
    function = f"{place}.{twin}{verb}" if place else twin + verb

    for alien in ALIENS:
        app = Faultline("postgresql://nowhere")
        words = good | ({"job": task_of(app).bind(1)} if "job" in good else {}) | {parameter: alien}
        if (name, parameter, repr(alien)) in FINE:
            continue

        with pytest.raises(FaultlineError) as caught:
            called(app, function, words)

        assert type(caught.value) is expected, (alien, caught.value)
        assert len(str(caught.value)) < 500


def test_every_public_function_is_in_the_table() -> None:
    app = Faultline("postgresql://nowhere")
    public = {f"limits.{name}" for name in dir(app.limits)} | {f"schedules.{name}" for name in dir(app.schedules)}
    tested = {*GOOD, "schedules.set", "limits.budgets", "schedules.list"}

    missing = {name for name in public if not name.split(".")[1].startswith("_")} - tested
    assert {name for name in missing if name.replace(".a", ".") not in tested} == set()


DECLARED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda app: app.queue("q", concurrency=0), "queue q: concurrency must be .* not 0; to stop a queue, pause it"),
    (lambda app: app.queue("q", concurrency=2.5), r"queue q: concurrency must be .* from 1 to 1,000,000, not 2.5$"),
    (lambda app: app.queue("q", concurrency="5"), "not '5'$"),
    (lambda app: app.queue("q", rate="100/m"), r"queue q: rate must be a Rate, such as Rate\(100, per=60\)"),
    (lambda app: app.queue("q", groups=["a"]), 'groups of queue q must be limits by keys, such as {"tenant-7": Limit'),
    (lambda app: app.queue("q", groups={"*": Limit()}), "cannot be '\\*', which stands for each group"),
    (lambda app: app.queue(""), "the name of a queue must be text of 1 to 100 characters, not ''"),
    (lambda app: app.queue("q\0"), "NUL"),
    (lambda app: app.queue("q", match=5), "match of queue q must be a list of patterns"),
    (lambda app: app.budget("", Rate(1)), "the name of a budget"),
    (lambda app: app.budget("b", 5), "rate of budget b must be a Rate"),
    (lambda app: [app.budget("b", Rate(1)), app.budget("b", Rate(1))], "budget b is declared already"),
    (lambda _: faultline_.Rate("100/m"), "the count of a rate must be a number, not '100/m'"),
    (lambda _: faultline_.Rate(0), "from 0.001 to 1,000,000,000, not 0"),
    (lambda _: faultline_.Rate(1, per=0), "from 0.000001 to 31,536,000, not 0"),
    (lambda _: faultline_.Limit(ordered=True, concurrency=5), "one after the other"),
    (lambda _: faultline_.Unique(period=0), "period of Unique must be between 0.001 and 315,360,000 seconds, not 0"),
    (lambda _: faultline_.Unique("doc:{doc}"), r"a key is named: Unique\(key='doc:{doc}'\)"),
    (lambda _: faultline_.Unique(None), "neither while_ nor period"),
    (lambda app: task_of(app, queue=["a", "b"]), "task send: queue must be text"),
    (lambda app: task_of(app, expires="10m"), "expires must be a number of seconds or a timedelta or a datetime, not '10m'"),
    (lambda app: task_of(app, unique="running"), "task send: unique must be 'queued', 'open' or Unique"),
    (lambda app: task_of(app, unique=True), "unique must be"),
    (lambda app: task_of(app, rate_limit="100/m"), r"unknown option rate_limit; a limit belongs to a queue: app.queue\("),
    (lambda app: task_of(app, concurrency=5), r"unknown option concurrency; a limit belongs to a queue: app.queue\("),
    (lambda app: task_of(app, max_retries=5), "unknown option max_retries; it is max_attempts here"),
    (lambda app: task_of(app, bind=True), "unknown option bind; a task gets its job by a parameter with that type"),
    (lambda app: task_of(app, colour=5), "unknown option colour; the options are delay, expires, group"),
    (lambda app: task_of(app, max_attempt=5), "unknown option max_attempt; did you mean max_attempts.* also has backoff"),
    (lambda app: task_of(app, time_out=5), "unknown option time_out; did you mean timeout"),
    (lambda app: task_of(app, name=""), "the name of a task"),
    (lambda app: app.on(""), "the name of a topic"),
    (lambda app: app.schedule(), "@app.schedule: a schedule needs one rule"),
    (lambda app: app.schedule("0 22-2 * * *"), 'A range goes up, and not over the end: write "22-23,0-2"'),
    (lambda app: app.schedule("0 9 * * fri-mon"), 'write "fri-sat,sun-mon"'),
    (lambda app: app.schedule("0 9 * nov-feb *"), 'write "nov-dec,jan-feb"'),
    (lambda app: app.schedule("0 22-2/2 * * *"), "A range goes up, and not over the end$"),
    (lambda app: app.schedule("0 22-99 * * *"), "It may be 0 to 23"),
    (lambda app: app.schedule("0 9 * * *", tz=""), 'the time zone "" is whatever each host says'),
    (lambda app: app.schedule("0 9 * * *", tz="Berlin"), 'did you mean "Europe/Berlin"'),
    (lambda app: app.schedule("0 9 * * *", tz="europe/berlin"), 'did you mean "Europe/Berlin"'),
    (lambda app: app.schedule("0 9 * * *", tz=timezone(timedelta(hours=2))), "tz must be the name of a time zone"),
    (lambda app: app.schedule(every="5m"), "every must be a number of seconds or a timedelta, not '5m'"),
    (lambda app: app.schedule(every=0), "every must be between 1 and 315,360,000 seconds, not 0"),
    (lambda app: app.schedule(at="2027-01-01T06:00Z"), "at must be a datetime with a time zone, not '2027"),
    (lambda app: app.schedule(at=datetime(2027, 1, 1)), "at 2027-01-01T00:00:00 has no time zone; add one"),  # noqa: DTZ001
    (lambda app: app.schedule(every=60, timezone="UTC"), "unknown option timezone; the options are at, .*, tz"),
    (lambda app: app.schedule(every=60, expires=5), r"expires is an option of the task, not of its schedule: @app.task"),
    (lambda app: app.task("send"), r"@app.task takes a function, not 'send'; options go by name: @app.task\(name=...\)"),
    (lambda app: app.task(app.step(task_of)), "@app.task takes a function, and task_of is a step already"),
    (lambda app: app.step(task_of(app)), "@app.step takes a function, and send is a task already; give it send.fn"),
    (lambda app: app.task(Alien), "@app.task takes a function, and Alien is a class"),
    (lambda app: app.step(Alien), "@app.step takes a function, and Alien is a class"),
    (lambda app: app.step("send"), "@app.step takes a function, not 'send'"),
    (lambda _: faultline_.Faultline(7), "Faultline takes a DSN, such as 'postgresql://user@host/db', .* not 7"),
    (lambda app: app.worker("mail"), r"queues must be a dict of names and numbers, .* not 'mail'"),
    (lambda app: app.worker(["mail"]), r"queues must be a dict of names and numbers, .* not \['mail'\]"),
    (lambda app: app.schedule(every=60, args="eu"), r"write args=\('eu',\)"),
    (lambda app: app.schedule(every=60, args=(1, 2, 3, 4))(task_of(app)), "schedule send: .*too many positional"),
]  # fmt: skip


@pytest.mark.parametrize(("declare", "why"), DECLARED, ids=[why for _, why in DECLARED])
def test_what_is_declared_and_wrong_is_a_config_error(declare: Callable[[Faultline], Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        declare(Faultline("postgresql://nowhere"))


SUBMITTED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda app: app.limits.set("q", concurrency=0), "to stop a queue, pause it"),
    (lambda app: app.limits.set("q", rate=5), "rate must be a Rate"),
    (lambda app: app.limits.set("q", weight=2), "weight and ordered are for groups"),
    (lambda app: app.limits.set(5, concurrency=1), "the name of a queue must be text of 1 to 100 characters, not 5"),
    (lambda app: app.limits.set_budget("b", 5), "the rate of a budget must be a Rate"),
    (lambda app: app.limits.set_budget("b", None), "use reset_budget"),
    (lambda app: app.schedules.set("s", task_of(app), every=60), r"a schedule needs a job, not task send; .*send.bind\("),
    (lambda app: app.schedules.set("s", "send", every=60), r"a schedule needs a job, such as task.bind"),
    (lambda app: app.schedules.set("s", task_of(app).bind(1), every=0), "every must be between"),
    (lambda app: app.schedules.set("s", task_of(app).bind(1), every=60, timezone="x"), "unknown option timezone"),
    (lambda app: app.schedules.backfill("s", datetime(2026, 1, 1), NOW), "first of a backfill .* has no time zone"),  # noqa: DTZ001
    (lambda app: app.schedules.backfill("s", date(2026, 1, 1), NOW), "must be a datetime with a time zone"),
    (lambda app: app.schedules.backfill("s", NOW, NOW - timedelta(1)), "goes backwards; swap the two moments"),
    (lambda app: app.schedules.next("s", 0), "count must be a whole number from 1"),
    (lambda app: task_of(app).options(rate_limit=5), "a limit belongs to a queue"),
    (lambda app: task_of(app).options(group="tenant-{tenant_id}"), r"fill it: options\(group=f'tenant-{tenant_id}'\)"),
    (lambda app: task_of(app).options(group="{to.city}"), r"put the template into @app.task\(group"),
    (lambda app: task_of(app).options(unique="running"), "unique must be"),
    (lambda app: app.enqueue(task_of(app).name, to="x"), r'come as a dict: app.enqueue\("send", {"to": …}\)'),
    (lambda app: app.enqueue("send", tenant=5), "unknown option tenant; the options are delay, expires"),
    (lambda app: app.enqueue_many([task_of(app)]), r"takes jobs as task.bind\(...\) makes them, not <Task send>"),
    (lambda app: app.enqueue_many([None]), r"enqueue_many takes jobs as task.bind\(...\) makes them, not None"),
    (lambda app: app.enqueue_many(task_of(app).bind(1)), r"enqueue_many takes a list of jobs, not .*for one job"),
    (lambda app: app.handle(JOB_ID).result(timeout="1"), "timeout must be a number of seconds or a timedelta, not '1'"),
]  # fmt: skip


@pytest.mark.parametrize(("submit", "why"), SUBMITTED, ids=[why for _, why in SUBMITTED])
def test_what_is_submitted_and_wrong_is_rejected(submit: Callable[[Faultline], Any], why: str) -> None:
    with pytest.raises(JobRejected, match=why):
        submit(Faultline("postgresql://nowhere"))


def test_a_time_zone_may_be_an_object() -> None:
    app = Faultline("postgresql://nowhere")

    @app.schedule("0 9 * * *", tz=ZoneInfo("Europe/Berlin"))
    @app.task
    async def report() -> None: ...

    assert '"tz":"Europe/Berlin"' in app.schedule_declarations()[0].spec.replace(" ", "")


def test_braces_that_name_no_argument_are_part_of_a_group() -> None:
    assert task_of(Faultline("postgresql://nowhere")).options(group="{literally}").bind(1).group == "{literally}"


async def _async_with_blocking(job: BlockingJob) -> None: ...
def _blocking_with_async(job: Job) -> None: ...
def _blocking_with_optional(it: Job | None) -> None: ...


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (_async_with_blocking, "is `async def` and takes job: BlockingJob; write `job: Job`, or make the task `def`"),
        (_blocking_with_async, "is `def` and takes job: Job; write `job: BlockingJob`, or make the task `async def`"),
        (_blocking_with_optional, "is `def` and takes it: Job; write `it: BlockingJob`"),
    ],
)
def test_a_job_of_the_other_kind_is_refused_where_the_task_is_declared(fn: Callable[..., Any], why: str) -> None:
    app = Faultline("postgresql://nowhere")

    with pytest.raises(ConfigError, match=re.escape(why)):
        app.task(fn)


def test_a_job_of_either_kind_or_without_an_annotation_may_be_declared() -> None:
    app = Faultline("postgresql://nowhere")

    @app.task
    def either(job: Job | BlockingJob) -> None: ...

    @app.task
    def unannotated(job) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    assert either.takes_job
    assert unannotated.takes_job


def test_a_name_that_is_nearly_that_of_a_task_is_warned_about_and_enqueued(app: Faultline) -> None:
    @app.task
    def hello() -> None: ...

    with pytest.warns(RuntimeWarning, match="no task helo is registered here; did you mean hello?"):
        handle = app.enqueue("helo")

    assert handle.job().task == "helo"


def test_waiting_for_a_result_on_an_event_loop_is_warned_about(app: Faultline) -> None:
    handle = app.enqueue("elsewhere")

    async def program() -> None:
        text = r"until the job has ended\. Write `await \.\.\.aresult"
        with pytest.warns(RuntimeWarning, match=text), pytest.raises(faultline.ResultTimeout):
            handle.result(timeout=0.1)

    asyncio.run(program())


def test_a_served_queue_that_no_task_uses_is_warned_about(app: Faultline, log: io.StringIO) -> None:
    @app.task(queue="mail")
    def send() -> None: ...

    async def program() -> None:
        async with app.worker({"mail": 1, "mial": 1}):
            pass

    asyncio.run(program())

    (warning,) = logged(log, "queue_unused")
    assert (warning["level"], warning["queue"], warning["used"]) == ("warning", "mial", "mail")


def test_dir_lists_the_public_names_and_each_error_says_what_it_is() -> None:
    assert dir(faultline) == sorted(faultline.__all__)
    errors = [one for name in faultline.__all__ if issubclass(type(one := getattr(faultline, name)), type)]
    texts = [one.__dict__.get("__doc__") for one in errors if issubclass(one, FaultlineError)]
    assert all(texts)
    assert len(set(texts)) == len(texts)

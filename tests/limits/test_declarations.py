"""Queues, limits and groups as a program writes them: mistakes raise where they are made. Needs no database."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from faultline import ConfigError, Faultline, JobRejected, Limit, Rate
from faultline.core.limits import changed_fields


@pytest.fixture
def app() -> Faultline:
    return Faultline("postgresql://nowhere")


def test_a_declaration_is_what_the_database_is_sent(app: Faultline) -> None:
    mail = app.queue(
        "mail",
        concurrency=100,
        rate=Rate(1000, per=timedelta(minutes=1), burst=10),
        each_group=Limit(concurrency=1, ordered=True),
        groups={"tenant-7": Limit(concurrency=1, weight=2.5)},
    )

    assert mail.declared == {
        "queue": {"concurrency": 100, "rate": 1000, "per": 60.0, "burst": 10},
        "each_group": {"concurrency": 1, "ordered": True},
        "groups": {"tenant-7": {"concurrency": 1, "weight": 2.5}},
    }
    [statement] = app.declarations()
    assert statement.params[0] == "mail"


def test_groups_without_limits_take_turns_all_the_same(app: Faultline) -> None:
    assert app.queue("mail", each_group=Limit()).declared == {"each_group": {}}


def test_a_declared_queue_is_its_name(app: Faultline) -> None:
    mail = app.queue("mail", concurrency=1)

    @app.task(queue=mail)
    async def send(n: int) -> None: ...

    assert mail == "mail"
    assert type(send.bind(1).queue) is str
    assert (send.bind(1).queue, send.queue) == ("mail", "mail")
    assert app.queues() == {"mail": 50}


@pytest.mark.parametrize("declared_first", [True, False])
def test_tasks_that_name_no_queue_go_where_their_names_fit(app: Faultline, declared_first: bool) -> None:  # noqa: FBT001
    def declare() -> None:
        app.queue("mail", concurrency=1, match=("mail.*", "*.letter"))
        app.queue("rest", match=("*",))

    if declared_first:
        declare()

    @app.task(name="mail.send")
    async def send(n: int) -> None: ...

    @app.task(name="mail.urgent", queue="urgent")
    async def send_now(n: int) -> None: ...

    @app.task(name="print.letter")
    async def letter(n: int) -> None: ...

    @app.task(name="charge")
    async def charge(n: int) -> None: ...

    # A copy that was made before the queue was declared must not slip by its limit.
    later = send.options(priority=5)
    if not declared_first:
        declare()

    tasks = (send, send_now, letter, charge, later)
    assert [task.bind(1).queue for task in tasks] == ["mail", "urgent", "mail", "rest", "mail"]
    assert [task.queue for task in tasks] == ["mail", "urgent", "mail", "rest", "mail"]
    assert send.options(queue="other").bind(1).queue == "other"


def test_a_group_is_filled_from_the_arguments(app: Faultline) -> None:
    @dataclass
    class Order:
        number: int

    @app.task(group="tenant-{tenant_id}-{order.number}")
    async def charge(tenant_id: int, order: dict[str, int], note: str = "x") -> None: ...

    assert charge.bind(7, {"number": 3}).group == "tenant-7-3"
    assert charge.bind(order={"number": 3}, tenant_id=8).group == "tenant-8-3"
    assert charge.options(group="{literally}").bind(7, {"number": 3}).group == "{literally}"


def test_jobs_that_are_bound_together_have_groups_of_their_own(app: Faultline) -> None:
    @app.task(group="tenant-{tenant}")
    async def charge(tenant: int) -> None: ...

    assert [job.group for job in charge.bind_each([1, 2])] == ["tenant-1", "tenant-2"]
    assert [job.group for job in charge.options(group="all").bind_each([1, 2])] == ["all", "all"]


def test_the_default_of_a_parameter_fills_a_group_too(app: Faultline) -> None:
    @app.task(group="{region}")
    async def report(region: str = "eu") -> None: ...

    assert report.bind().group == "eu"
    assert report.bind("us").group == "us"


@pytest.mark.parametrize("template", ["tenant-{tenant}", "{0}", "{}", "{n!r}", "{n:>3}", "{n", "", "{job}"])
def test_a_template_that_names_no_argument_raises_at_the_decoration(app: Faultline, template: str) -> None:
    with pytest.raises(ConfigError, match="group of task"):

        @app.task(group=template)
        async def charge(n: int) -> None: ...

    assert app.tasks == {}


@pytest.mark.parametrize("bad", [None, "", "x" * 10_000, "a\0b", "a\nb", "*", "\ud800", [1]])
def test_a_group_that_cannot_be_one_raises_at_the_enqueue(app: Faultline, bad: Any) -> None:
    @app.task(group="{tenant}")
    async def charge(tenant: Any) -> None: ...

    with pytest.raises(JobRejected, match=r"tenant|arguments of charge"):
        charge.bind(bad)


@pytest.mark.parametrize("bad", ["", "x" * 201, "x" * 10_000, "a\0b", "a\x1bb", "*", "\ud800", 7])
def test_a_literal_group_that_cannot_be_one_raises_at_once(app: Faultline, bad: Any) -> None:
    @app.task
    async def charge(n: int) -> None: ...

    with pytest.raises(JobRejected, match="group"):
        charge.options(group=bad)
    with pytest.raises(ConfigError, match="group"):
        app.queue("mail", groups={bad: Limit()})


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "5", math.inf, 10**18])
def test_a_concurrency_is_a_whole_number_above_zero(app: Faultline, bad: Any) -> None:
    with pytest.raises(ConfigError, match="concurrency must be a whole number"):
        Limit(concurrency=bad)
    with pytest.raises(ConfigError, match="concurrency"):
        app.queue("mail", concurrency=bad)
    with pytest.raises(JobRejected, match="concurrency"):
        app.limits.set("mail", concurrency=bad)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, True, "5", 10**400])
def test_a_rate_is_above_zero(bad: Any) -> None:
    with pytest.raises(ConfigError, match="count"):
        Rate(bad)
    with pytest.raises(ConfigError, match="seconds"):
        Rate(1, per=bad)
    with pytest.raises(ConfigError, match="burst"):
        Rate(1, burst=bad)
    with pytest.raises(ConfigError, match="weight"):
        Limit(weight=bad)


def test_less_than_one_at_once_would_never_start_a_job() -> None:
    assert Rate(0.5).stored() == {"rate": 0.5, "per": 1.0}
    with pytest.raises(ConfigError, match="burst"):
        Rate(0.5, burst=0.5)


def test_what_contradicts_itself_is_refused(app: Faultline) -> None:
    with pytest.raises(ConfigError, match="one after the other"):
        Limit(concurrency=2, ordered=True)
    with pytest.raises(ConfigError, match="must be a Rate"):
        Limit(rate=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be a Limit"):
        app.queue("mail", each_group=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"write match=\('mail.\*',\)"):
        app.queue("mail", match="mail.*")
    with pytest.raises(ConfigError, match="must be a Rate"):
        app.queue("mail", rate=5)  # type: ignore[arg-type]
    app.queue("mail")
    with pytest.raises(ConfigError, match="declared already"):
        app.queue("mail", concurrency=2)


def test_a_change_names_what_it_changes() -> None:
    assert changed_fields({"concurrency": 5}) == {"concurrency": 5}
    assert changed_fields({"concurrency": None}) == {"concurrency": None}
    assert changed_fields({"rate": Rate(5)}) == {"rate": 5, "per": 1.0, "burst": None}
    assert changed_fields({"rate": None}) == {"rate": None, "per": None, "burst": None}


def test_a_change_of_nothing_and_of_unknown_fields_is_refused(app: Faultline) -> None:
    with pytest.raises(JobRejected, match="nothing to set"):
        app.limits.set("mail")
    with pytest.raises(JobRejected, match="no concurency"):
        app.limits.set("mail", concurency=5)  # type: ignore[call-arg]
    with pytest.raises(JobRejected, match="for groups"):
        app.limits.set("mail", weight=2)
    with pytest.raises(JobRejected, match="control characters"):
        app.limits.set("mail", group="a\0b", concurrency=5)

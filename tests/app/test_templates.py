"""Texts over a task's arguments: a mistake raises where the task is decorated, and a bad value where the job is made."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from faultline.attempt.templates import Template
from faultline.core.errors import ConfigError, JobRejected


@dataclass
class Order:
    id: int
    region: str = "eu"


class Size(Enum):
    LARGE = "large"


def send(tenant_id: int, name: Any = "ada", order: Order | None = None, **more: Any) -> None: ...


def plain(tenant_id: int, region: str = "eu", nothing: str | None = None) -> None: ...


SIGNATURE = inspect.signature(plain)
ANY = inspect.signature(send)


@pytest.mark.parametrize(
    ("text", "args", "filled"),
    [
        ("tenant-{tenant_id}", {"tenant_id": 7}, "tenant-7"),
        ("{tenant_id}:{region}", {"tenant_id": 7, "region": "us"}, "7:us"),
        ("{tenant_id}:{region}", {"tenant_id": 7}, "7:eu"),
        ("all", {}, "all"),
        ("{{{tenant_id}}}", {"tenant_id": "x"}, "{x}"),
        ("{tenant_id}", {"tenant_id": True}, "true"),
        ("{tenant_id}", {"tenant_id": 1.5}, "1.5"),
        ("{tenant_id}", {"tenant_id": 2**70}, str(2**70)),
        ("{tenant_id}", {"tenant_id": UUID(int=1)}, str(UUID(int=1))),
        ("{tenant_id}", {"tenant_id": Size.LARGE}, "large"),
    ],
)
def test_a_template_is_filled_with_what_is_stored_of_the_arguments(text: str, args: dict[str, Any], filled: str) -> None:
    assert Template(text, SIGNATURE).fill(args) == filled


def test_fields_of_an_argument_are_followed() -> None:
    template = Template("{order.region}/{order.id}", ANY)

    assert template.fill({"tenant_id": 1, "order": Order(5)}) == "eu/5"
    assert template.fill({"tenant_id": 1, "order": {"id": 6, "region": "us"}}) == "us/6"
    with pytest.raises(JobRejected, match=r"order\.region is missing"):
        template.fill({"tenant_id": 1})


def test_a_task_that_takes_any_argument_may_name_any() -> None:
    template = Template("{shop}", ANY)

    assert template.fill({"shop": "berlin"}) == "berlin"
    with pytest.raises(JobRejected, match="shop is missing"):
        template.fill({"tenant_id": 1})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tenant-{tenant}", "names tenant, which is not an argument; there are: tenant_id, region, nothing"),
        ("{}", "must be the name of an argument"),
        ("{0}", "must be the name of an argument"),
        ("{tenant_id:>5}", "without a format"),
        ("{tenant_id!r}", "without a format"),
        ("{tenant_id[0]}", "must be the name of an argument"),
        ("{tenant_id", "write {{ and }}"),
        ("", "must be text"),
        (7, "must be text"),
    ],
)
def test_a_mistake_raises_where_the_task_is_decorated(text: Any, why: str) -> None:
    with pytest.raises(ConfigError, match="the group of task t") as caught:
        Template(text, SIGNATURE, "the group of task t")
    assert why in str(caught.value)


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, b"x", object()])
def test_a_value_that_is_neither_text_nor_a_number_raises_where_the_job_is_made(value: Any) -> None:
    with pytest.raises(JobRejected, match=r"the group of task t, .*tenant_id is .*it must be text or a number"):
        Template("x-{tenant_id}", SIGNATURE, "the group of task t").fill({"tenant_id": value})


def test_a_default_that_is_none_must_be_given() -> None:
    template = Template("{nothing}", SIGNATURE)

    assert template.fill({"nothing": "something"}) == "something"
    with pytest.raises(JobRejected, match="nothing is None"):
        template.fill({})


def test_what_the_database_stores_has_the_defaults() -> None:
    assert Template("t-{tenant_id}/{region}!", SIGNATURE).stored() == [
        {"text": "t-", "path": ["tenant_id"]},
        {"text": "/", "path": ["region"], "default": "eu"},
        {"text": "!"},
    ]

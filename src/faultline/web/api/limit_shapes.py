"""The schemas of requests and responses about limits, as /openapi.json shows them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from faultline.core import bounds
from faultline.core.limits import BudgetRecord, LimitRecord
from faultline.store.reads.groups import GroupLine, QueueUse
from faultline.web.api import cursors
from faultline.web.api.shapes import PAGE_JOBS_MAX, Asked, AtOnce, Reason

GroupCursor = Annotated[str, StringConstraints(pattern=cursors.GROUP_PATTERN)]


_PER = "Seconds. Default: those of the rate in force, or 1."
_BURST = "Default: that in force, less in proportion if the rate is lower; or the rate."
#: A time and a burst are those of a rate.
_OF_A_RATE = {"per": ["rate"], "burst": ["rate"]}
_ORDERED_AT_ONCE = {
    "required": ["ordered", "concurrency"],
    "properties": {"ordered": {"const": True}, "concurrency": {"type": "number", "exclusiveMinimum": 1}},
}


def _some_of(*names: str) -> dict[str, Any]:
    """In the description: something must be set."""
    return {"anyOf": [{"required": [name]} for name in names], "dependentRequired": _OF_A_RATE}


class LimitChange(Asked):
    """What to set of the limit of a queue. What is left out stays as it is; null is no limit."""

    model_config = ConfigDict(json_schema_extra=_some_of("concurrency", "rate"))

    concurrency: AtOnce | None = Field(None, description="Jobs at once. To stop a queue, pause it.")
    rate: float | None = Field(
        None,
        ge=bounds.RATE_MIN,
        le=bounds.LIMIT_MAX,
        allow_inf_nan=False,
        description="Jobs that may start in `per` seconds.",
    )
    per: float | None = Field(
        None, ge=bounds.PER_SECONDS_MIN, le=bounds.PER_SECONDS_MAX, allow_inf_nan=False, description=f"With `rate`. {_PER}"
    )
    burst: float | None = Field(
        None,
        ge=1,
        le=bounds.LIMIT_MAX,
        allow_inf_nan=False,
        description=f"Jobs that may start at once. With `rate`. {_BURST}",
    )
    reason: Reason | None = Field(None, description="Recorded in the journal, with the name and id of the key.")


class GroupLimitChange(LimitChange):
    """What to set of the limit of each group, or of one. What is left out stays as it is; null is no limit."""

    model_config = ConfigDict(
        json_schema_extra=_some_of("concurrency", "rate", "weight", "ordered") | {"not": _ORDERED_AT_ONCE}
    )

    weight: float | None = Field(
        None, ge=bounds.WEIGHT_MIN, le=bounds.WEIGHT_MAX, allow_inf_nan=False, description="The share of a group."
    )
    ordered: bool | None = Field(None, description="Jobs of a group run one after the other, in order.")


class Limits(BaseModel):
    """What a queue and its groups may do, and what the queue does now."""

    queue: str
    limited: bool = Field(description="false: no limit was ever declared or set; its jobs are claimed the plain way.")
    use: QueueUse | None
    limits: list[LimitRecord] = Field(description="`group` is empty for the queue as a whole, and `*` for each group.")


class BudgetChange(Asked):
    """What jobs may take from a budget. It holds until it is reset."""

    rate: float = Field(
        ge=bounds.RATE_MIN, le=bounds.LIMIT_MAX, allow_inf_nan=False, description="What may be taken in `per` seconds."
    )
    per: float | None = Field(
        None, ge=bounds.PER_SECONDS_MIN, le=bounds.PER_SECONDS_MAX, allow_inf_nan=False, description=_PER
    )
    burst: float | None = Field(
        None, ge=1, le=bounds.LIMIT_MAX, allow_inf_nan=False, description=f"The most that there ever is. {_BURST}"
    )
    reason: Reason | None = Field(None, description="Recorded in the journal, with the name and id of the key.")


class Budgets(BaseModel):
    budgets: list[BudgetRecord]


class GroupFilter(Asked):
    model_config = ConfigDict(extra="forbid", strict=False)

    limit: int = Field(50, ge=1, le=PAGE_JOBS_MAX)
    after: GroupCursor | None = Field(None, description="`next_cursor` of the previous page.")


class Groups(BaseModel):
    groups: list[GroupLine]
    next_cursor: str | None = Field(description="The `after` of the next page; null at the end.")
    more_groups: bool = Field(description="Only some groups were compared; one on the next pages may wait for longer.")

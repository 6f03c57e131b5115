"""Limits of queues and groups: read, set, reset. A key that is restricted to queues reads and sets those of its queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request

from faultline import operate
from faultline.core.limits import WHOLE_QUEUE
from faultline.store.reads import groups as reads
from faultline.store.reads import limits as stored
from faultline.web.api import cursors
from faultline.web.api.limit_shapes import BudgetChange, Budgets, GroupFilter, GroupLimitChange, Groups, LimitChange, Limits
from faultline.web.api.routes import CheckedRoute
from faultline.web.api.shapes import GroupKey, QueueName, Reason
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from faultline.web.auth.connection_share import Share

router = APIRouter(tags=["queues"], route_class=CheckedRoute)

Operator = Annotated[Caller, Depends(needs("operate"))]
Reader = Annotated[Caller, Depends(needs("read"))]
Queue = Annotated[QueueName, Path(description="Not one whose name has a part `/limits`.")]
BudgetName = Annotated[QueueName, Path(description="The name of the budget.")]
Group = Annotated[GroupKey, Path(description="The key of a group; `*` is each group.")]
Why = Annotated[Reason | None, Query(description="Recorded in the journal, with the name and id of the key.")]


@router.get("/queues/{queue_name:limited}/limits", summary="The limits of a queue and its groups, and their use")
async def limits(request: Request, queue_name: Queue, caller: Reader) -> Limits:
    """A queue without limits has none; that is no error."""
    _check_queue(caller, queue_name)
    return await _read(service_of(request).read_for(caller), queue_name)


@router.get("/queues/{queue_name:limited}/limits/{group:path}", summary="The limit of one group")
async def group_limits(request: Request, queue_name: Queue, group: Group, caller: Reader) -> Limits:
    """`limits` has one entry, or none where nothing is declared or set for this group: `*` holds for it."""
    _check_queue(caller, queue_name)
    found = await _read(service_of(request).read_for(caller), queue_name)
    return found.model_copy(update={"limits": [one for one in found.limits if one.group == group]})


@router.put("/queues/{queue_name:limited}/limits", summary="Set limits of a queue as a whole")
async def set_limits(request: Request, queue_name: Queue, body: LimitChange, caller: Operator) -> Limits:
    """They win over what the code declares, until they are reset."""
    return await _set(request, queue_name, WHOLE_QUEUE, body, caller)


@router.put("/queues/{queue_name:limited}/limits/{group:path}", summary="Set the limit of each group, or of one")
async def set_group_limits(
    request: Request, queue_name: Queue, group: Group, body: GroupLimitChange, caller: Operator
) -> Limits:
    return await _set(request, queue_name, group, body, caller)


@router.delete("/queues/{queue_name:limited}/limits", summary="Reset limits of a queue as a whole")
async def reset_limits(request: Request, queue_name: Queue, caller: Operator, reason: Why = None) -> Limits:
    """Undo what was set: what the code declares holds again."""
    return await _reset(request, queue_name, WHOLE_QUEUE, reason, caller)


@router.delete("/queues/{queue_name:limited}/limits/{group:path}", summary="Reset the limit of each group, or of one")
async def reset_group_limits(
    request: Request, queue_name: Queue, group: Group, caller: Operator, reason: Why = None
) -> Limits:
    return await _reset(request, queue_name, group, reason, caller)


@router.get("/queues/{queue_name:limited}/groups", summary="The groups of a queue with limits, by how long they wait")
async def groups(request: Request, queue_name: Queue, wanted: Annotated[GroupFilter, Query()], caller: Reader) -> Groups:
    """Those that wait longest first, then those that only hold permits."""
    _check_queue(caller, queue_name)
    behind = None if wanted.after is None else cursors.decode(wanted.after, "group", reads.CURSOR_TYPES)
    asked = reads.groups(queue_name, page_rows=wanted.limit, behind=behind)
    page = await service_of(request).read_for(caller).run(asked)
    return Groups(
        groups=page.groups,
        next_cursor=None if page.behind is None else cursors.encode("group", page.behind),
        more_groups=page.more_groups,
    )


@router.get("/budgets", summary="List budgets, with what is in them now")
async def budgets(request: Request, caller: Reader) -> Budgets:
    """Jobs of all queues take from them, so a key that is restricted to queues does not see them."""
    return await _budgets(request, caller)


@router.put("/budgets/{budget_name:path}", summary="Set a budget")
async def set_budget(request: Request, budget_name: BudgetName, body: BudgetChange, caller: Operator) -> Budgets:
    _check_all_queues(caller)
    doing = operate.set_budget(
        budget_name, body.model_dump(exclude={"reason"}, exclude_none=True), reason=body.reason, by=caller.signed()
    )
    await service_of(request).operate.run(doing)
    return await _budgets(request, caller)


@router.delete("/budgets/{budget_name:path}", summary="Reset a budget, or remove one that no code declares")
async def reset_budget(request: Request, budget_name: BudgetName, caller: Operator, reason: Why = None) -> Budgets:
    """What the code declares holds again. A budget is removed if it was made by hand, and if it is `orphaned`."""
    _check_all_queues(caller)
    await service_of(request).operate.run(operate.reset_budget(budget_name, reason=reason, by=caller.signed()))
    return await _budgets(request, caller)


async def _budgets(request: Request, caller: Caller) -> Budgets:
    _check_all_queues(caller)
    return Budgets(budgets=await service_of(request).read_for(caller).run(stored.budgets()))


def _check_all_queues(caller: Caller) -> None:
    if caller.queues is not None:
        raise Problem(
            403,
            "Forbidden",
            "This key is restricted to queues; a budget concerns all queues.",
            next_step="Use a key for all queues.",
        )


async def _set(request: Request, queue: str, group: str, body: LimitChange, caller: Caller) -> Limits:
    _check_queue(caller, queue)
    fields = body.model_dump(include=body.model_fields_set - {"reason"})
    doing = operate.set_limit(queue, group, fields, reason=body.reason, by=caller.signed())
    await service_of(request).operate.run(doing)
    return await _read(service_of(request).read_for(caller), queue)


async def _reset(request: Request, queue: str, group: str, reason: str | None, caller: Caller) -> Limits:
    _check_queue(caller, queue)
    await service_of(request).operate.run(operate.reset_limit(queue, group, reason=reason, by=caller.signed()))
    return await _read(service_of(request).read_for(caller), queue)


async def _read(read: Share, queue: str) -> Limits:
    asked: list[Any] = [reads.in_use(queue), stored.limits(queue)]
    uses, found = await read.run_all(asked)
    return Limits(queue=queue, limited=bool(uses), use=uses[0] if uses else None, limits=found)


def _check_queue(caller: Caller, queue_name: str) -> None:
    if not caller.may_touch(queue_name):
        raise Problem(404, "QueueNotFound", "No such queue.", next_step="See the list of queues.")

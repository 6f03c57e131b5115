"""Set and reset a budget. They are shown with the queues: jobs of all queues take from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request

from faultline import operate
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages.page_frame import HERE, go
from faultline.web.server.forms import form_of, refused_form
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from fastapi.responses import RedirectResponse

    from faultline.web.server.forms import Form

router = APIRouter()
_PAGE = "/queues"


@router.post("/budgets/set")
async def set_budget(request: Request, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    form = await form_of(request)
    name = _budget(form, caller)
    fields = {field: form.number(field) for field in ("rate", "per", "burst") if form.one(field) is not None}
    with refused_form("BudgetRefused"):
        doing = operate.set_budget(name, fields, reason=form.words("reason"), by=caller.signed(HERE))
        await service_of(request).operate.run(doing)
    return go(_PAGE, said="budget_set")


@router.post("/budgets/reset")
async def reset_budget(request: Request, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    form = await form_of(request)
    doing = operate.reset_budget(_budget(form, caller), reason=form.words("reason"), by=caller.signed(HERE))
    changed = await service_of(request).operate.run(doing)
    return go(_PAGE, said="budget_reset" if changed else "budget_kept")


def _budget(form: Form, caller: Caller) -> str:
    name = form.one("budget")
    if name is None or caller.queues is not None:
        raise Problem(404, "BudgetNotFound", "No such budget.", next_step="See the list of queues and budgets.")
    return name

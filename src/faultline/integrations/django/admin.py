"""Jobs in Django's admin: a list to read, and to cancel and retry jobs for those who have the permission.

The table may be large. So the list counts no further than its last page, and sorts by what is indexed.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db import connections

from faultline.core.errors import FaultlineError
from faultline.integrations.django.applications import application, backends
from faultline.integrations.django.models import Job
from faultline.store.external_sessions import joined
from faultline.store.reads import views

if TYPE_CHECKING:
    from collections.abc import Callable

#: Further jobs are found by a filter or their id.
_LISTED_MAX = 10_000
#: Further ones are left for a second time: the request would take too long.
_AT_ONCE_MAX = 1000


class _Paginator(Paginator):
    @cached_property
    def count(self) -> int:
        return self.object_list[:_LISTED_MAX].count()  # type: ignore[no-any-return]


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    list_display = ("id", "task", "queue", "state", "attempt", "created_at", "finished_at")
    list_filter = ("state",)
    search_fields = ("id",)
    search_help_text = "The id of a job, or the whole name of a task or a queue"
    sortable_by = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = _Paginator
    actions = ("cancel_jobs", "retry_jobs")
    fields = readonly_fields = (
        "id", "task", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "next_run_at", "claimed_at",
        "finished_at", "owner", "arguments", "result", "last_error",
    )  # fmt: skip

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).using(_alias()).defer("last_error")

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:  # noqa: ARG002
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(id=UUID(term)), False
        except ValueError:
            return queryset.filter(task=term) | queryset.filter(queue=term), False

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_cancel_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("faultline.cancel_job"))

    def has_retry_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("faultline.retry_job"))

    @admin.display(description="arguments")
    def arguments(self, job: Job) -> str:
        return _shown(job, "args")

    @admin.display(description="result")
    def result(self, job: Job) -> str:
        return _shown(job, "result")

    @admin.action(description="Cancel selected jobs", permissions=["cancel"])
    def cancel_jobs(self, request: Any, queryset: Any) -> None:
        app, by = application(_alias()), _who(request)
        self._each(request, queryset, "cancelled", lambda job_id: app.cancel(job_id, "cancelled in Django's admin", by=by))

    @admin.action(description="Retry selected failed or cancelled jobs", permissions=["retry"])
    def retry_jobs(self, request: Any, queryset: Any) -> None:
        app, by = application(_alias()), _who(request)
        self._each(
            request, queryset, "queued again", lambda job_id: app.retry(job_id, reason="retried in Django's admin", by=by)
        )

    def _each(self, request: Any, queryset: Any, done: str, operate: Callable[[UUID], object]) -> None:
        """Operate on each job, and say what became of them."""
        ids = list(queryset.values_list("id", flat=True)[: _AT_ONCE_MAX + 1])
        refused: list[str] = []
        for job_id in ids[:_AT_ONCE_MAX]:
            try:
                operate(job_id)
            except FaultlineError as error:
                refused.append(str(error))
        count = min(len(ids), _AT_ONCE_MAX) - len(refused)
        if count:
            self.message_user(request, f"Jobs {done}: {count}.", messages.SUCCESS)
        if refused:
            self.message_user(request, f"Jobs refused: {len(refused)}. The first: {refused[0]}", messages.WARNING)
        if len(ids) > _AT_ONCE_MAX:
            self.message_user(request, f"Only the first {_AT_ONCE_MAX} were looked at; repeat it.", messages.WARNING)


def _alias() -> str:
    """The database of the first backend that is Faultline's: the admin shows one."""
    found = backends()
    return str(found[0].faultline_database) if found else "default"


def _who(request: Any) -> str:
    return f"django:{request.user.get_username()}"[:200]


def _shown(job: Job, what: str) -> str:
    """By the connection of the page: another one would not see what a test has not committed."""
    record = joined(connections[_alias()]).run(views.job(job.id))
    # None: it was pruned while the page was made.
    return "" if record is None else json.dumps(getattr(record, what), ensure_ascii=False, indent=2)[:10_000]

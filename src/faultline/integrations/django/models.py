"""Jobs as a model, for the admin: read only, from the database's own view of all jobs."""

from __future__ import annotations

from django.db import models

from faultline.core.states import JobState


class Job(models.Model):
    """One job, without its arguments and result, which may be large."""

    id = models.UUIDField(primary_key=True)
    state = models.CharField(choices=[(one.value, one.value) for one in JobState])
    queue = models.TextField()
    task = models.TextField()
    priority = models.SmallIntegerField()
    attempt = models.IntegerField()
    max_attempts = models.SmallIntegerField("attempts at most")
    created_at = models.DateTimeField("enqueued at")
    next_run_at = models.DateTimeField(null=True)
    claimed_at = models.DateTimeField("last claimed at", null=True)
    finished_at = models.DateTimeField(null=True)
    owner = models.TextField("worker", null=True)  # noqa: DJ001 - as the view has it
    last_error = models.TextField(null=True)  # noqa: DJ001

    class Meta:
        managed = False
        # Django quotes the name as a whole: this makes it the view `jobs` of the schema `faultline`.
        db_table = 'faultline"."jobs'
        default_permissions = ("view",)
        permissions = (("cancel_job", "Can cancel jobs"), ("retry_job", "Can retry jobs"))
        # Ids begin with the time at which they were made, and are indexed.
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.task} {self.id}"

"""What goes wrong between a program and its tasks: what raises leaves no job behind, and no job waits for nothing."""

from __future__ import annotations

import sys
import types
from typing import Any
from unittest import mock

import psycopg
from django.db import connection
from django.test import override_settings

from faultline import OutcomeUnknown
from faultline.integrations.django import application
from faultline.integrations.django.compat import InvalidTask, TaskResultStatus, task_backends, task_enqueued
from faultline.store.reads import views
from faultline.store.statement import Statement
from faultline.testing import Drained, drain
from tests.integrations.django_site import tasks
from tests.integrations.django_site.suite_backend import BACKEND, FaultlineTestCase


class MishapTests(FaultlineTestCase):
    def test_a_receiver_that_raises_leaves_no_job_behind(self) -> None:
        def refuse(**_: Any) -> None:
            raise ValueError("a receiver")

        task_enqueued.connect(refuse)
        self.addCleanup(task_enqueued.disconnect, refuse)

        with self.assertRaisesMessage(ValueError, "a receiver"):
            tasks.mail.enqueue("ada")

        self.assertEqual(drain(application()), Drained())

    def test_a_lost_answer_to_the_commit_is_told(self) -> None:
        def cut(**_: Any) -> None:
            with connection.cursor() as cursor, psycopg.connect(application().dsn, autocommit=True) as other:
                cursor.execute("select pg_backend_pid()")
                other.execute("select pg_terminate_backend(%s, 5000)", cursor.fetchone())

        task_enqueued.connect(cut)
        self.addCleanup(task_enqueued.disconnect, cut)

        with self.assertRaisesMessage(OutcomeUnknown, "the answer to the commit was lost"):
            tasks.mail.enqueue("ada")

        self.assertEqual(drain(application()), Drained())

    def test_a_task_that_no_worker_would_find_is_refused(self) -> None:
        with self.assertRaisesMessage(InvalidTask, "let the task have the name of its function"):
            tasks.renamed.enqueue()
        elsewhere = types.ModuleType("elsewhere")
        exec("def run(): ...", vars(elsewhere))  # noqa: S102 - a module of its own
        vars(elsewhere)["run"] = run = tasks.declare(vars(elsewhere)["run"])
        with mock.patch.dict(sys.modules, elsewhere=elsewhere), self.assertRaisesMessage(InvalidTask, "INSTALLED_APPS"):
            run.enqueue()

        self.assertEqual(drain(application()), Drained())

    def test_a_job_whose_queue_or_backend_is_gone_from_the_settings_runs_and_is_read(self) -> None:
        mail, once = tasks.mail.enqueue("ada"), tasks.charge.using(backend="once").enqueue(1)

        with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}):
            self.assertEqual(drain(application()).succeeded, 2)
            for result in (mail, once):
                found = task_backends["default"].get_result(result.id)
                self.assertEqual(
                    (found.status, found.task.queue_name), (TaskResultStatus.SUCCESSFUL, result.task.queue_name)
                )

    def test_an_outage_when_an_attempt_begins_uses_it_not_up(self) -> None:
        usual, ended = views.job, Statement("job", "select pg_terminate_backend(pg_backend_pid())", (), lambda _: None)
        for task in (tasks.charge, tasks.achange):
            with self.subTest(task.name):
                result = task.using(backend="once").enqueue(1)
                found = [ended]

                with mock.patch.object(views, "job", lambda job_id, found=found: found.pop() if found else usual(job_id)):
                    drained = self.run_all()

                self.assertEqual((drained.succeeded, drained.failed, found), (1, 0, []))
                result.refresh()
                self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)

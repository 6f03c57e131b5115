"""Django's ORM under the fence: its writes and the end of the job commit together, and are refused together."""

from __future__ import annotations

from typing import Any

import psycopg
from django.db import connection, transaction

from faultline import ConfigError
from faultline.integrations.django import application, atomic
from faultline.integrations.django.compat import task_finished
from faultline.testing import Drained, drain
from tests.integrations.django_site import tasks
from tests.integrations.django_site.models import Order
from tests.integrations.django_site.suite_backend import FaultlineTestCase


class FencingTests(FaultlineTestCase):
    def setUp(self) -> None:
        super().setUp()
        tasks.steps.clear()
        self.order = Order.objects.create()
        self.result = tasks.charge_once.enqueue(self.order.pk)

    def outcome(self) -> tuple[int, str, Any]:
        self.result.refresh()
        self.order.refresh_from_db()
        done = self.result.return_value if self.result.is_finished and not self.result.errors else None
        return self.order.paid, str(self.result.status), done

    def test_the_writes_and_the_completion_commit_together(self) -> None:
        seen: list[int] = []
        tasks.steps["inside"] = lambda: seen.append(self._paid_outside())

        self.assertEqual(drain(application()).succeeded, 1)

        self.assertEqual(seen, [0])
        self.assertEqual(self.outcome(), (100, "SUCCESSFUL", "charged"))

    def test_the_signal_has_the_result_of_the_transaction_whatever_comes_after_it(self) -> None:
        sent: list[tuple[str, Any]] = []

        def receive(task_result: Any, **_: Any) -> None:
            sent.append((str(task_result.status), task_result.return_value))

        def stumble() -> None:
            raise tasks.CardDeclined("after the end")

        task_finished.connect(receive)
        self.addCleanup(task_finished.disconnect, receive)
        drain(application())
        tasks.steps["after"] = stumble
        tasks.charge_once.enqueue(self.order.pk)
        drain(application())

        self.assertEqual(sent, [("SUCCESSFUL", "charged")] * 2)
        self.assertEqual(self.outcome()[0], 200)

    def test_a_hook_that_raises_after_the_commit_changes_nothing_of_what_the_signal_says(self) -> None:
        sent: list[tuple[str, Any]] = []

        def receive(task_result: Any, **_: Any) -> None:
            sent.append((str(task_result.status), task_result.return_value))

        def stumble() -> None:
            raise tasks.CardDeclined("after the commit")

        task_finished.connect(receive)
        self.addCleanup(task_finished.disconnect, receive)
        tasks.steps["inside"] = lambda: transaction.on_commit(stumble)

        self.assertEqual(drain(application()).succeeded, 1)

        self.assertEqual(sent, [("SUCCESSFUL", "charged")])
        self.assertEqual(self.outcome(), (100, "SUCCESSFUL", "charged"))

    def test_without_autocommit_the_writes_and_the_completion_commit_together_too(self) -> None:
        seen: list[int] = []
        tasks.steps["before"] = lambda: transaction.set_autocommit(False)
        tasks.steps["inside"] = lambda: seen.append(self._paid_outside())
        tasks.steps["after"] = lambda: seen.append(self._paid_outside())

        self.assertEqual(drain(application(), timeout=10).succeeded, 1)

        self.assertEqual(seen, [0, 100])
        self.assertEqual(self.outcome(), (100, "SUCCESSFUL", "charged"))

    def test_without_autocommit_an_error_undoes_all(self) -> None:
        def stumble() -> None:
            raise tasks.CardDeclined("after the write")

        def receive(**_: Any) -> None:
            seen.append(connection.connection.info.transaction_status.name)

        seen: list[str] = []
        task_finished.connect(receive)
        self.addCleanup(task_finished.disconnect, receive)
        application().cancel(self.result.id)
        self.result = tasks.charge_once.using(backend="once").enqueue(self.order.pk)
        tasks.steps["before"], tasks.steps["inside"] = lambda: transaction.set_autocommit(False), stumble

        self.assertEqual(drain(application(), timeout=10).failed, 1)

        self.assertEqual(self.outcome()[:2], (0, "FAILED"))
        self.assertEqual(seen, ["IDLE"])

    def test_the_writes_are_rolled_back_with_the_attempt_and_made_once(self) -> None:
        def stumble() -> None:
            raise tasks.CardDeclined("after the write")

        tasks.steps["inside"] = stumble
        self.assertEqual(drain(application()).rescheduled, 1)
        self.assertEqual(self.outcome()[:2], (0, "READY"))

        self.run_all()

        self.assertEqual(self.outcome()[:2], (100, "SUCCESSFUL"))

    def test_a_stale_attempt_writes_nothing(self) -> None:
        tasks.steps["before"] = lambda: application().cancel(self.result.id)

        drain(application())

        self.assertEqual(self.outcome()[:2], (0, "FAILED"))

    def test_a_commit_from_inside_is_refused(self) -> None:
        tasks.steps["inside"] = transaction.commit

        drained = drain(application())

        self.assertEqual((drained.succeeded, drained.rescheduled), (0, 1))
        self.assertEqual(self.outcome()[:2], (0, "READY"))
        self.assertEqual(self.result.errors[0].exception_class, transaction.TransactionManagementError)

    def test_an_error_of_the_database_that_the_task_swallows_commits_nothing(self) -> None:
        def swallow() -> None:
            try:
                with transaction.atomic(savepoint=False):
                    Order.objects.create(pk=self.order.pk)
            except Exception:  # noqa: BLE001 - that is the case
                return

        tasks.steps["inside"] = swallow

        drained = drain(application())

        self.assertEqual((drained.succeeded, drained.rescheduled), (0, 1))
        self.assertEqual(self.outcome()[0], 0)

    def test_it_is_for_the_code_of_running_blocking_tasks(self) -> None:
        with self.assertRaisesMessage(ConfigError, "is for the code of a running task"), atomic():
            self.fail("opened")
        drain(application())
        result = tasks.acharge_once.enqueue()

        self.assertEqual(drain(application()), Drained(rescheduled=1, errors=(self.errors_of(result),)))
        self.assertIn("is async, and Django's transactions are not", self.errors_of(result))

    def test_inside_another_transaction_it_is_refused(self) -> None:
        outer = transaction.atomic()
        tasks.steps["before"] = outer.__enter__
        drained = drain(application())

        self.assertEqual((drained.succeeded, drained.rescheduled), (0, 1))
        self.assertIn("is inside an atomic block", drained.errors[0])

    def errors_of(self, result: Any) -> str:
        return f"{result.task.module_path}: {application().job(result.id).last_error}"

    def _paid_outside(self) -> int:
        with psycopg.connect(application().dsn) as other:
            [(paid,)] = other.execute("select paid from django_site_order where id = %s", (self.order.pk,)).fetchall()
        return int(paid)

"""What the backend promises, beyond Django's own tests of backends."""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from typing import Any
from unittest import mock

from django.core import checks
from django.db import connection, connections, transaction
from django.test import TransactionTestCase, override_settings
from django.utils import timezone

from faultline import ConfigError, JobCancelled, JobFailed, JobRejected
from faultline.integrations.django import application
from faultline.integrations.django.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from faultline.store.testing import jobs
from faultline.testing import Drained, drain, frozen_time, on_database
from faultline.values import Misfit
from tests.integrations.django_site import tasks
from tests.integrations.django_site.models import Order

BACKEND = "faultline.integrations.django.FaultlineBackend"


class Shop:
    def charge(self) -> None: ...


class FaultlineTestCase(TransactionTestCase):
    """Each test begins without open jobs, and ends with the clock of the server."""

    def setUp(self) -> None:
        tasks.seen.clear()
        for job in application().database.run(jobs()):
            if not job.state.ended:
                application().cancel(job.id)

    def run_all(self) -> Drained:
        """Run what is due, and later attempts."""
        with frozen_time(application()) as time:
            return drain(application(), advancing=time)


class EnqueueTests(FaultlineTestCase):
    def test_a_task_and_the_row_it_is_about_commit_together(self) -> None:
        with transaction.atomic():
            order = Order.objects.create()
            result = tasks.charge.enqueue(order.pk, amount=30)
            seen_inside = tasks.charge.get_result(result.id)
            run_before = drain(application())
        run_after = drain(application())

        self.assertEqual(seen_inside, result)
        self.assertEqual((run_before.succeeded, run_after.succeeded), (0, 1))
        result.refresh()
        self.assertEqual(result.return_value, {"paid": 30})
        self.assertEqual(Order.objects.get(pk=order.pk).paid, 30)

    def test_a_task_that_is_rolled_back_never_was(self) -> None:
        with transaction.atomic():
            result = tasks.charge.enqueue(1)
            transaction.set_rollback(True)

        with self.assertRaises(TaskResultDoesNotExist):
            tasks.charge.get_result(result.id)
        self.assertEqual(drain(application()).succeeded, 0)

    def test_larger_priorities_run_first(self) -> None:
        results = [tasks.mail.using(priority=priority).enqueue(str(priority)) for priority in (-100, 0, 100, 50)]

        drain(application())

        self.assertEqual(tasks.seen, ["100", "50", "0", "-100"])
        self.assertEqual([tasks.mail.get_result(one.id).task.priority for one in results], [-100, 0, 100, 50])

    def test_a_task_waits_until_run_after_and_remembers_it(self) -> None:
        at = timezone.now() + dt.timedelta(hours=1)
        result = tasks.mail.using(run_after=at).enqueue("late")

        now = drain(application())
        self.run_all()

        self.assertEqual(now.succeeded, 0)
        self.assertEqual(tasks.seen, ["late"])
        result.refresh()
        self.assertEqual(tasks.mail.get_result(result.id).task.run_after, at)

    @override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
    def test_without_time_zones_times_are_naive(self) -> None:
        connection.close()
        at = dt.datetime.now().replace(microsecond=0) + dt.timedelta(hours=1)  # noqa: DTZ005
        result = tasks.mail.using(run_after=at).enqueue("late")

        self.assertEqual(tasks.mail.get_result(result.id).task.run_after, at)
        self.assertIsNone(result.enqueued_at.tzinfo)
        job = application().job(result.id)
        self.assertEqual(job.next_run_at, timezone.make_aware(at))
        connection.close()

    async def test_async_code_enqueues_and_reads_results(self) -> None:
        order = await Order.objects.acreate()
        result = await tasks.achange.aenqueue(order.pk)

        found = await tasks.achange.aget_result(result.id)

        self.assertEqual(found, result)

    def test_an_async_task_runs_on_the_event_loop(self) -> None:
        order = Order.objects.create()
        result = tasks.achange.enqueue(order.pk)

        self.assertEqual(drain(application()).succeeded, 1)

        result.refresh()
        self.assertEqual((result.return_value, Order.objects.get(pk=order.pk).paid), (1, 7))

    def test_bad_input_is_refused_before_anything_is_stored(self) -> None:
        with self.assertRaisesMessage(TypeError, "missing a required argument: 'order_id'"):
            tasks.charge.enqueue()
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            tasks.charge.enqueue(timezone.now())
        with self.assertRaisesMessage(JobRejected, "nan, which JSON cannot represent"):
            tasks.charge.enqueue(float("nan"))
        with self.assertRaisesMessage(JobRejected, "which is not text"):
            tasks.charge.enqueue({1: 2})

        self.assertEqual(drain(application()), Drained())

    def test_a_broken_transaction_takes_no_task(self) -> None:
        with self.assertRaises(transaction.TransactionManagementError), transaction.atomic():
            transaction.set_rollback(True)
            tasks.charge.enqueue(1)


class ResultTests(FaultlineTestCase):
    def test_a_failed_attempt_is_ready_again_and_each_has_its_worker_and_error(self) -> None:
        result = tasks.look.enqueue()

        first = drain(application())
        result.refresh()
        between = (result.status, result.attempts, len(result.errors), result.is_finished)
        started_at = result.started_at
        second = self.run_all()
        result.refresh()

        self.assertEqual((first.rescheduled, second.succeeded), (1, 1))
        self.assertEqual(between, (TaskResultStatus.READY, 1, 1, False))
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(result.return_value, [2, "RUNNING", 1])
        self.assertEqual(len(result.worker_ids), 2)
        self.assertNotEqual(*result.worker_ids)
        self.assertEqual(result.errors[0].exception_class, tasks.CardDeclined)
        self.assertEqual(result.started_at, started_at)
        self.assertGreater(result.last_attempted_at, result.started_at)

    def test_the_error_has_a_class_to_import_and_a_traceback(self) -> None:
        result = tasks.decline_once.enqueue()

        drain(application())

        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertEqual((result.backend, tasks.decline_once.get_result(result.id)), ("once", result))
        [error] = result.errors
        self.assertEqual(error.exception_class, tasks.CardDeclined)
        self.assertTrue(error.traceback.startswith("Traceback (most recent call last):\n  File "), error.traceback)
        self.assertTrue(error.traceback.endswith("CardDeclined: no money\n  at all\n"), error.traceback)

    def test_a_cancelled_job_has_failed_with_the_reason(self) -> None:
        cancelled, by_itself = tasks.decline.enqueue(), tasks.call_off.enqueue()
        application().cancel(cancelled.id, "not wanted")

        drain(application())

        for result in (cancelled, by_itself):
            result.refresh()
            self.assertEqual(result.status, TaskResultStatus.FAILED)
            self.assertEqual(result.errors[-1].exception_class, JobCancelled)
            self.assertEqual(result.errors[-1].traceback.removeprefix("cancelled: "), "not wanted")
        self.assertEqual((cancelled.attempts, by_itself.attempts), (0, 1))

    def test_a_retry_by_a_person_begins_the_attempts_anew(self) -> None:
        result = tasks.decline_once.enqueue()
        drain(application())

        application().retry(result.id)

        result.refresh()
        self.assertEqual((result.status, result.attempts, result.errors), (TaskResultStatus.READY, 0, []))
        drain(application())
        result.refresh()
        self.assertEqual((result.status, result.attempts, len(result.errors)), (TaskResultStatus.FAILED, 1, 1))

    def test_a_task_gives_up_by_itself(self) -> None:
        result = tasks.give_up.enqueue()

        self.assertEqual(drain(application()).failed, 1)

        result.refresh()
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.FAILED, 1))
        self.assertEqual(result.errors[0].exception_class, JobFailed)
        self.assertIn("no such order", result.errors[0].traceback)

    def test_what_cannot_be_stored_fails_once_and_for_all(self) -> None:
        result = tasks.unstorable.enqueue()

        self.run_all()

        result.refresh()
        self.assertEqual((tasks.seen, result.status), (["worked"], TaskResultStatus.FAILED))
        self.assertEqual(result.errors[0].exception_class, TypeError)
        self.assertIn("Unsupported type", result.errors[0].traceback)

    def test_a_job_that_is_no_task_of_django_has_no_result(self) -> None:
        app = application()
        app.tasks.pop("native", None)
        handle = app.task(name="native")(lambda: None).enqueue()

        with self.assertRaisesMessage(TaskResultDoesNotExist, "which this project does not have"):
            task_backends["default"].get_result(str(handle.id))
        with self.assertRaises(TaskResultDoesNotExist):
            task_backends["default"].get_result(str(uuid.uuid4()))
        with self.assertRaises(TaskResultDoesNotExist):
            task_backends["default"].get_result("no id")

    def test_an_engine_error_has_a_class_too(self) -> None:
        app = application()
        result = tasks.charge.enqueue(1)
        known: Any = app.tasks.get(tasks.charge.module_path)
        known.plain.clear()
        with mock.patch.object(known, "accept", side_effect=Misfit("no")):
            drain(app)

        result.refresh()
        self.assertEqual(result.errors[0].exception_class, JobFailed)


class SignalTests(FaultlineTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.sent: list[tuple[str, str, int]] = []
        self.raises = False
        for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):
            receiver = self._receiver(name)
            signal.connect(receiver)
            self.addCleanup(signal.disconnect, receiver)

    def _receiver(self, name: str) -> Any:
        def receive(sender: type[Any], task_result: Any, **_: Any) -> None:
            assert sender.__name__ == "FaultlineBackend"
            self.sent.append((name, str(task_result.status), task_result.attempts))
            if self.raises:
                raise ValueError("a receiver")

        return receive

    def test_all_three_are_sent(self) -> None:
        tasks.mail.enqueue("ada")
        drain(application())

        self.assertEqual(self.sent, [("enqueued", "READY", 0), ("started", "RUNNING", 1), ("finished", "SUCCESSFUL", 1)])

    def test_a_task_has_finished_when_no_attempt_follows(self) -> None:
        tasks.look.enqueue()
        self.run_all()
        self.assertEqual([name for name, *_ in self.sent], ["enqueued", "started", "started", "finished"])

        self.sent.clear()
        with self.assertLogs(level="ERROR") as logged:
            tasks.decline_once.enqueue()
            self.run_all()
        self.assertEqual(self.sent[-1], ("finished", "FAILED", 1))
        self.assertIn("CardDeclined: no money", "".join(logged.output))

        self.sent.clear()
        for task in (tasks.call_off, tasks.later, tasks.give_up):
            task.enqueue()
        drain(application())
        self.assertEqual([name for name, *_ in self.sent].count("finished"), 3)

    def test_a_receiver_that_raises_in_the_worker_harms_no_task(self) -> None:
        result = tasks.mail.enqueue("ada")
        self.raises = True
        with self.assertLogs("django.dispatch", "ERROR"):
            drain(application())

        result.refresh()
        self.assertEqual((result.status, tasks.seen), (TaskResultStatus.SUCCESSFUL, ["ada"]))


class WorkerTests(FaultlineTestCase):
    def test_no_connection_outlives_its_attempt(self) -> None:
        tasks.session.enqueue()

        drain(application())

        [used] = tasks.seen
        self.assertIsNot(used, connections["default"])
        self.assertIsNone(used.connection)

    @override_settings(DEBUG=True)
    def test_the_queries_that_django_keeps_for_debugging_are_those_of_one_attempt(self) -> None:
        for _ in range(3):
            tasks.session.enqueue()

        drain(application())

        self.assertEqual({len(used.queries_log) for used in tasks.seen}, {1})

    def test_no_connection_of_an_async_task_outlives_its_attempt(self) -> None:
        with mock.patch.dict(connections["default"].settings_dict, {"CONN_MAX_AGE": None}):
            tasks.achange.enqueue(1)
            drain(application())

        with connection.cursor() as cursor:
            cursor.execute(
                "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
                " and application_name not like 'faultline%'"
            )
            self.assertEqual(cursor.fetchone(), (0,))

    def test_async_tasks_do_not_wait_for_each_other_in_djangos_one_thread(self) -> None:
        for _ in range(2):
            tasks.meet.enqueue()

        self.assertEqual(drain(application(), concurrency=2, timeout=20).succeeded, 2)

    def test_the_application_follows_its_alias_to_another_database(self) -> None:
        app = application()
        here = app.database.dsn

        with mock.patch.dict(connections["default"].settings_dict, {"NAME": "postgres"}):
            self.assertIn("dbname=postgres", app.database.dsn)
            self.assertIn("dbname=postgres", app.dsn)
        self.assertEqual((app.database.dsn, app.dsn), (here, here))

    def test_an_application_that_chooses_its_database_is_not_given_another(self) -> None:
        with self.assertRaisesMessage(ConfigError, "chooses its database itself"), on_database(application(), "dbname=x"):
            self.fail("given")

    def test_only_modules_of_the_project_are_imported_for_a_job(self) -> None:
        app = application()

        for path in ("os.system", "tests.integrations.django_site.tasks.seen", "tests.no.such", "", "charge"):
            self.assertIsNone(app.tasks.get(path), path)
        self.assertIsNone(app.tasks.get("colorsys.task"))
        self.assertNotIn("colorsys", sys.modules)
        self.assertIsNotNone(app.tasks.get("tests.integrations.django_site.tasks.charge"))

    def test_a_job_of_an_unknown_task_waits_for_a_worker_that_knows_it(self) -> None:
        app = application()
        handle = app.task(name="tests.gone")(lambda: None).enqueue()
        del app.tasks["tests.gone"]

        self.assertEqual(drain(app), Drained())
        self.assertEqual((handle.job().state, handle.job().attempt), ("queued", 0))

    def test_a_module_that_cannot_be_imported_ends_no_worker(self) -> None:
        with self.assertLogs("faultline.django", "ERROR"):
            self.assertIsNone(application().tasks.get("tests.integrations.django_site.broken.task"))

    def test_the_queues_of_a_worker_are_those_of_the_backends(self) -> None:
        self.assertEqual(sorted(application().queues()), ["default", "mail"])


class DeclarationTests(FaultlineTestCase):
    def test_a_method_is_refused_with_what_to_do(self) -> None:
        with self.assertRaisesMessage(InvalidTask, "Shop.charge is a method of a class, which a worker cannot import"):
            tasks.declare(Shop.charge)

    def test_what_no_worker_can_import_is_refused(self) -> None:
        anonymous = eval("lambda: None", {"__name__": __name__})  # noqa: S307 - one of a module's own
        with self.assertRaisesMessage(InvalidTask, "cannot be imported"):
            tasks.declare(anonymous)
        with self.assertRaisesMessage(InvalidTask, "is not valid for backend"):
            tasks.mail.using(queue_name=" mail")

    def test_the_checks_know_what_is_wrong_with_the_settings(self) -> None:
        cases: dict[str, dict[str, Any]] = {
            "faultline.E001": {"OPTIONS": {"retries": 3}},
            "faultline.E002": {"OPTIONS": {"max_attempts": 0}},
            "faultline.E003": {"OPTIONS": {"database": "gone"}},
            "faultline.E004": {"OPTIONS": {"database": "lite"}},
        }
        for code, params in cases.items():
            with self.subTest(code), override_settings(TASKS={"default": {"BACKEND": BACKEND, **params}}):
                self.assertEqual([one.id for one in checks.run_checks() if str(one.id).startswith("faultline")], [code])
        with override_settings(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"]):
            found = list(task_backends["default"].check())
        self.assertEqual([one.id for one in found], ["faultline.E005"])
        self.assertEqual(list(task_backends["default"].check()), [])

    def test_the_database_check_looks_for_the_schema(self) -> None:
        self.assertEqual(checks.run_checks(databases=["default"]), [])
        with connection.cursor() as cursor:
            cursor.execute("alter schema faultline rename to elsewhere")
        try:
            application().close()
            found = checks.run_checks(databases=["default"])
        finally:
            with connection.cursor() as cursor:
                cursor.execute("alter schema elsewhere rename to faultline")
        self.assertEqual([one.id for one in found], ["faultline.W001"])

"""The page of jobs in Django's admin, and the commands of `manage.py`."""

from __future__ import annotations

import io
import os
from typing import Any
from unittest import mock

from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from faultline.integrations.django import application
from faultline.store.reads import views
from faultline.testing import drain
from tests.integrations.django_site import tasks
from tests.integrations.django_site.suite_backend import FaultlineTestCase

LIST = reverse("admin:faultline_job_changelist")


class AdminTests(FaultlineTestCase):
    def enter(self, *permissions: str) -> None:
        user = User.objects.create_user("ada", password="secret", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.client.login(username="ada", password="secret")

    def act(self, action: str, *results: Any) -> str:
        chosen = {"action": action, "_selected_action": [result.id for result in results]}
        return self.client.post(LIST, chosen, follow=True).content.decode()  # type: ignore[no-any-return, unused-ignore]

    def test_jobs_are_listed_newest_first_and_shown_with_their_arguments(self) -> None:
        self.enter("view_job")
        first, second = tasks.mail.enqueue("<b>ada</b>"), tasks.charge.enqueue(42)
        drain(application())

        page = self.client.get(LIST).content.decode()
        one = self.client.get(reverse("admin:faultline_job_change", args=[first.id])).content.decode()

        self.assertLess(page.index(second.id), page.index(first.id))
        self.assertIn("&lt;b&gt;ada&lt;/b&gt;", one)
        self.assertNotIn("<b>ada", one)
        self.assertNotIn('name="_save"', one)

    def test_the_list_is_searched_by_id_task_and_queue_and_filtered_by_state(self) -> None:
        self.enter("view_job")
        mail, charge = tasks.mail.enqueue("ada"), tasks.charge.enqueue(42)

        for query in (f"?q={mail.id}", f"?q={tasks.mail.module_path}", "?q=mail"):
            page = self.client.get(LIST + query).content.decode()
            self.assertIn(mail.id, page, query)
            self.assertNotIn(charge.id, page, query)
        self.assertNotIn(mail.id, self.client.get(LIST + "?state__exact=failed").content.decode())

    def test_a_large_table_is_not_counted_to_its_end(self) -> None:
        self.enter("view_job")
        tasks.mail.enqueue("ada")
        tasks.mail.enqueue("grace")

        counted_max = mock.patch("faultline.integrations.django.admin._LISTED_MAX", 1)
        with counted_max, CaptureQueriesContext(connection) as queries:
            page = self.client.get(LIST).content.decode()

        counts = [query["sql"] for query in queries if "COUNT" in query["sql"]]
        self.assertEqual(["LIMIT 1" in sql for sql in counts], [True])
        self.assertIn("1 job", page)

    def test_a_job_that_is_not_committed_is_shown_to_the_transaction_that_sees_it(self) -> None:
        """As in a `TestCase`."""
        self.enter("view_job")
        with transaction.atomic():
            result = tasks.mail.enqueue("ada")

            one = self.client.get(reverse("admin:faultline_job_change", args=[result.id]))

        self.assertEqual(one.status_code, 200)
        self.assertIn("ada", one.content.decode())

    def test_nobody_is_offered_to_count_all_jobs(self) -> None:
        self.enter("view_job")

        page = self.client.get(LIST).content.decode()
        with CaptureQueriesContext(connection) as queries:
            self.client.get(LIST + "?_facets=True")

        self.assertNotIn("_facets", page)
        self.assertEqual([query["sql"] for query in queries if "COUNT" in query["sql"] and "LIMIT" not in query["sql"]], [])

    def test_those_without_the_permission_can_neither_look_nor_operate(self) -> None:
        result = tasks.mail.enqueue("ada")
        self.enter()
        self.assertEqual(self.client.get(LIST).status_code, 403)
        User.objects.all().delete()

        self.enter("view_job")
        page = self.act("cancel_jobs", result)

        self.assertNotIn("Cancel selected jobs", page)
        self.assertEqual(application().job(result.id).state, "queued")

    def test_a_job_is_cancelled_and_retried_in_the_name_of_who_did_it(self) -> None:
        self.enter("view_job", "cancel_job", "retry_job")
        result, done = tasks.mail.enqueue("ada"), tasks.charge.enqueue(1)
        drain(application(), "default")

        cancelled = self.act("cancel_jobs", result, done)
        state = application().job(result.id).state
        retried = self.act("retry_jobs", result)

        self.assertEqual(state, "cancelled")
        self.assertIn("Jobs cancelled: 1.", cancelled)
        self.assertIn("Jobs refused: 1.", cancelled)
        self.assertIn("Jobs queued again: 1.", retried)
        journal = application().database.run(views.journal(result.id))
        self.assertEqual(
            [(one.event, one.detail["by"]) for one in journal], [("cancelled", "django:ada"), ("retried", "django:ada")]
        )

    def test_nothing_can_be_added_changed_or_deleted(self) -> None:
        result = tasks.mail.enqueue("ada")
        User.objects.create_superuser("root", password="secret")
        self.client.login(username="root", password="secret")
        url = reverse("admin:faultline_job_change", args=[result.id])

        self.assertEqual(self.client.post(url, {"state": "failed"}).status_code, 403)
        self.assertEqual(self.client.get(reverse("admin:faultline_job_add")).status_code, 403)
        self.assertEqual(self.client.get(reverse("admin:faultline_job_delete", args=[result.id])).status_code, 403)


class CommandTests(FaultlineTestCase):
    def test_migrate_says_what_it_applied(self) -> None:
        said = io.StringIO()

        call_command("faultline_migrate", stdout=said)

        self.assertEqual(said.getvalue(), "applied: nothing, it is up to date\n")

    def test_a_database_that_is_not_postgresql_is_refused(self) -> None:
        for command in ("faultline_migrate", "faultline", "faultline_worker"):
            with self.assertRaisesMessage(CommandError, "Faultline needs PostgreSQL"):
                call_command(command, database="lite")
        with self.assertRaisesMessage(CommandError, "DATABASES has no 'gone'; it has default, lite"):
            call_command("faultline", "doctor", "--database", "gone")

    def test_the_worker_is_faultlines_own_command_on_djangos_database(self) -> None:
        with mock.patch.object(os, "execve") as became:
            call_command("faultline_worker", "--queue", "mail=5", "--processes", "2")

        (_, words, environment), _ = became.call_args
        self.assertEqual(words[1:5], ["-m", "faultline", "worker", "faultline.integrations.django.worker:app"])
        self.assertEqual(words[5:], ["--queue", "mail=5", "--processes", "2"])
        self.assertEqual(environment["FAULTLINE_DSN"], application().dsn)
        self.assertNotIn("password", " ".join(words))

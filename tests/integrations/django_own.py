"""Run Django's own tests for task backends, `tests/tasks` of its source distribution, with Faultline's backend.

Its files are used as they are. Faultline's backend takes the place of the two that come with Django: of the dummy, which
only stores tasks, and of the immediate one, which runs them at once. Here a real worker does, with a real database.

    python -m tests.integrations.django_own FOLDER      # the folder that has Django's `tasks` in it
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import TestCase, TestSuite

#: Tests of what only Django's two backends do, and why they cannot hold here.
LEFT_OUT = {
    "test_clear": "only the dummy forgets its results",
    "DummyBackendTestCase.test_refresh_result": "changes a result in the dummy's memory",
    "DummyBackendTestCase.test_refresh_result_async": "changes a result in the dummy's memory",
    "test_cannot_get_result": "Faultline has results",
    "test_cannot_refresh_result": "Faultline has results",
    "test_cannot_pass_run_after": "Faultline has run_after",
    "test_throws_keyboard_interrupt": "a worker runs the task, not the caller",
    "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": (
        "a worker sees a task when the transaction of its enqueue commits"
    ),
}
MODULES = ("test_dummy_backend", "test_immediate_backend", "test_tasks")
_END_OTHERS = (
    "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database()"
    " and pid <> pg_backend_pid()"
)


def main(folder: Path) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.integrations.django_site.settings")
    # Some of Django's async tests call blocking methods of a result.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    sys.path.insert(0, str(folder))
    from django.conf import settings  # noqa: PLC0415

    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tasks"]
    _put_in_place()
    import django  # noqa: PLC0415
    from django.db import connections  # noqa: PLC0415
    from django.test.runner import DiscoverRunner  # noqa: PLC0415
    from django.test.testcases import SimpleTestCase  # noqa: PLC0415

    django.setup()
    SimpleTestCase.databases = {"default"}  # they use none with Django's own backends

    class Runner(DiscoverRunner):  # type: ignore[misc, unused-ignore]
        def build_suite(self, *args: Any, **kwargs: Any) -> Any:
            chosen: Any = TestSuite()
            left_out: set[str] = set()
            for test in _each(super().build_suite(*args, **kwargs)):
                names = {test._testMethodName, f"{type(test).__name__}.{test._testMethodName}"}  # noqa: SLF001
                found = names & LEFT_OUT.keys()
                left_out |= found
                if not found:
                    chosen.addTest(test)
            assert left_out == LEFT_OUT.keys(), f"Django has these no more: {LEFT_OUT.keys() - left_out}"
            return chosen

        def teardown_databases(self, old_config: Any, **kwargs: Any) -> None:
            # Where an async test calls blocking methods, Django opens connections in threads that it never closes.
            with connections["default"].cursor() as cursor:
                cursor.execute(_END_OTHERS)
            super().teardown_databases(old_config, **kwargs)

    return int(Runner(verbosity=1, interactive=False).run_tests([f"tasks.{name}" for name in MODULES]))


def _each(suite: Any) -> list[TestCase]:
    return [suite] if isinstance(suite, TestCase) else [test for one in suite for test in _each(one)]


def _put_in_place() -> None:
    """Before Django's tests import the two backends, by name or by settings."""
    from django.db import connections  # noqa: PLC0415
    from django.tasks.backends import dummy, immediate  # noqa: PLC0415

    from faultline.integrations.django import FaultlineBackend, application  # noqa: PLC0415
    from faultline.store.external_sessions import joined  # noqa: PLC0415
    from faultline.store.testing import jobs  # noqa: PLC0415
    from faultline.testing import drain  # noqa: PLC0415

    class Storing(FaultlineBackend):
        """Shows what it has stored, as the dummy does."""

        forgotten: set[Any] = set()  # noqa: RUF012 - for all threads

        @property
        def results(self) -> list[Any]:
            stored = joined(connections["default"]).run(jobs())
            return [self.get_result(str(job.id)) for job in stored if job.id not in self.forgotten]

        def clear(self) -> None:
            self.forgotten.update(job.id for job in application().database.run(jobs()))
            for job in application().database.run(jobs()):
                if not job.state.ended:
                    application().cancel(job.id)

    class Running(FaultlineBackend):
        """Runs a task before `enqueue` returns, as the immediate backend does."""

        def __init__(self, alias: str, params: Any) -> None:
            super().__init__(alias, params)
            self.max_attempts = 1

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            # In a thread of its own, as a worker is in a process of its own: asgiref knows which loops wait for this one.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(drain, application()).result()
            result.refresh()
            return result

    dummy.DummyBackend, immediate.ImmediateBackend = Storing, Running


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

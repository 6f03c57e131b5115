"""Django's tasks on Faultline. Django's own test runner runs the suites of `django_site`; here it is started.

Django 5.2 runs with the package django-tasks, in this environment. Later ones need Python 3.12, and an environment of their
own; Django's own tests of backends come from its source distribution.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.django_versions import Environment, Unavailable, environment

ROOT = Path(__file__).parents[2]
SUITES = sorted(path.stem for path in (ROOT / "tests/integrations/django_site").glob("suite_*.py"))
PATIENCE = 600.0


def run(python: str, dsn: str, *words: str, **more: str) -> str:
    """What a program of Django said. Fails with it unless it ends well."""
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    settings = "tests.integrations.django_site.settings"
    ran = subprocess.run(
        [python, "-m", *words],
        cwd=ROOT,
        env={**os.environ, "FAULTLINE_DSN": dsn, "DJANGO_SETTINGS_MODULE": settings, "PYTHONPATH": paths, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def later(series: str) -> Environment:
    try:
        return environment(series)
    except Unavailable as error:
        pytest.skip(f"Django {series} cannot be tested here: {error}")


@pytest.mark.parametrize("suite", SUITES)
def test_the_backend_keeps_its_promises_on_django_5_2(suite: str, dsn: str) -> None:
    assert "\nOK" in run(sys.executable, dsn, "django", "test", f"tests.integrations.django_site.{suite}")


def test_the_test_runner_can_drop_its_database_when_django_keeps_connections(dsn: str) -> None:
    labels = [f"tests.integrations.django_site.{suite}" for suite in ("suite_connections", "suite_fencing")]

    assert "\nOK" in run(sys.executable, dsn, "django", "test", *labels, CONN_MAX_AGE="60")


@pytest.mark.long
@pytest.mark.parametrize("series", ["6.0", "6.1"])
def test_the_backend_keeps_its_promises_on_later_versions_of_django(series: str, dsn: str) -> None:
    labels = [f"tests.integrations.django_site.{suite}" for suite in SUITES]

    assert "\nOK" in run(later(series).python, dsn, "django", "test", *labels, DJANGO_TASKS="builtin")


@pytest.mark.long
@pytest.mark.parametrize("series", ["6.0", "6.1"])
def test_the_backend_passes_djangos_own_tests_of_backends(series: str, dsn: str) -> None:
    found = later(series)

    said = run(found.python, dsn, "tests.integrations.django_own", str(found.own_tests), DJANGO_TASKS="builtin")

    assert "\nOK" in said, said

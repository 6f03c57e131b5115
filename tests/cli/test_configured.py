"""A setting comes from a file, the environment or the command line; the later one counts more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from faultline.cli import configured
from faultline.cli.main import app
from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

GROUP: Any = typer.main.get_command(app)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(*words: str) -> dict[str, Any]:
    """The options of `faultline worker`, as the command gets them."""
    context = GROUP.make_context("faultline", ["worker", "m:app", *words])
    found: dict[str, Any] = GROUP.commands["worker"].make_context("worker", ["m:app", *words], parent=context).params
    return found


def test_the_command_line_counts_more_than_the_environment_and_that_more_than_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given()["grace"] == 30.0

    (folder / "faultline.toml").write_text('[worker]\ngrace = 10\nqueue = ["mail=50"]\n')
    assert (given()["grace"], given()["queue"]) == (10.0, ["mail=50"])

    monkeypatch.setenv("FAULTLINE_WORKER_GRACE", "20")
    assert given()["grace"] == 20.0
    assert given("--grace", "40")["grace"] == 40.0


def test_a_project_file_is_as_good(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[project]\nname = "shop"\n[tool.faultline.worker]\njob-connections = 7\n')

    assert given()["job_connections"] == 7


def test_other_tables_of_a_project_file_are_none_of_ours(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")

    assert given()["grace"] == 30.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[worker]\ngrcae = 1", "sets 'grcae' for worker; its options are abandoned_threads_max"),
        ("[worcer]\ngrace = 1", "has 'worcer'"),
        ("[worker\n", "is not valid TOML"),
        ("[worker]\nparent = 3", "sets 'parent' for worker"),
    ],
)
def test_what_would_never_take_effect_is_an_error(folder: Path, text: str, told: str) -> None:
    (folder / "faultline.toml").write_text(text)

    with pytest.raises(ConfigError, match=told):
        given()


def test_the_database_of_a_file_counts_less_than_the_environment(folder: Path) -> None:
    (folder / "faultline.toml").write_text('dsn = "postgresql://file"\ntimeout = 5\n')
    none: dict[str, str] = {}
    other = {"DATABASE_URL": "postgresql://environment"}

    configured.options(GROUP.commands, folder, none)
    configured.options(GROUP.commands, folder, other)

    assert none == {"FAULTLINE_DSN": "postgresql://file", "FAULTLINE_TIMEOUT": "5"}
    assert "FAULTLINE_DSN" not in other

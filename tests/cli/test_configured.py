"""A setting comes from a file, the environment or the command line; the later one counts more."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.main

import faultline as faultline_package
from faultline.cli.main import app
from faultline.core.errors import ConfigError
from faultline.core.settings import CommonSettings, ServeSettings, WorkerSettings, settings_of
from faultline.core.settings_file import File, read
from tests.cli.commands import faultline

GROUP: Any = typer.main.get_command(app)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(*words: str) -> WorkerSettings:
    """The settings of `faultline worker`, as the command gets them."""
    context = GROUP.make_context("faultline", ["worker", "m:app", *words])
    command = GROUP.get_command(context, "worker")
    params = command.make_context("worker", ["m:app", *words], parent=context).params
    return read(WorkerSettings, {**params, "queue": list(params["queue"] or []) or None})


def test_the_command_line_counts_more_than_the_environment_and_that_more_than_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given() == WorkerSettings()

    (folder / "faultline.toml").write_text('[worker]\ngrace = 10\nqueue = ["mail=50"]\nquiet = true\n')
    assert given() == WorkerSettings(grace=10.0, queue=["mail=50"], quiet=True)

    monkeypatch.setenv("FAULTLINE_WORKER_GRACE", "20")
    monkeypatch.setenv("FAULTLINE_WORKER_QUEUE", "mail=5 slow")
    monkeypatch.setenv("FAULTLINE_WORKER_QUIET", "off")
    assert given() == WorkerSettings(grace=20.0, queue=["mail=5", "slow"], quiet=False)
    words = ("--grace", "40", "--queue", "one", "--queue", "two=2", "--quiet", "--job-connections", "7")
    assert given(*words) == WorkerSettings(grace=40.0, queue=["one", "two=2"], quiet=True, job_connections=7)


def test_an_empty_variable_is_not_set(folder: Path) -> None:
    assert read(ServeSettings, {}, folder=folder, environ={"FAULTLINE_SERVE_PORT": ""}) == ServeSettings()


def test_a_variable_may_have_an_older_name(folder: Path) -> None:
    environ = {"FAULTLINE_TRUSTED_PROXIES": "10.0.0.7"}

    assert read(ServeSettings, {}, folder=folder, environ=environ).trusted_proxies == "10.0.0.7"


def test_zero_seconds_of_silence_are_no_limit(folder: Path) -> None:
    assert given("--loop-timeout", "0").options()["loop_timeout_seconds"] == float("inf")


def test_what_is_told_to_a_process_of_several_is_understood_by_it(folder: Path) -> None:
    settings = WorkerSettings(grace=1.5, loop_timeout=float("inf"), abandoned_threads_max=0, job_connections=3, quiet=True)

    assert given(*settings.words()) == settings
    assert given(*replace(settings, job_connections=None).words()) == replace(settings, job_connections=None)


def test_a_project_file_is_as_good(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[project]\nname = "shop"\n[tool.faultline.worker]\njob-connections = 7\n')

    assert given().job_connections == 7


def test_other_tables_of_a_project_file_are_none_of_ours(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")

    assert given() == WorkerSettings()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[worker]\ngrcae = 1", r"unknown setting grcae in \[worker\] of .*/faultline.toml; did you mean grace\?$"),
        ("[worker]\nhealth-prot = 1", r"unknown setting health_prot in \[worker\] .*; did you mean health_port\?$"),
        ("[worcer]\ngrace = 1", r"unknown setting worcer in .*/faultline.toml; did you mean worker\?$"),
        ("dns = 'postgresql:'", r"did you mean dsn\?$"),
        ("[worker\n", "is not valid TOML"),
        ("[worker]\nparent = 3", r"unknown setting parent in \[worker\] of .*; it may have queue, processes, grace, "),
        ("worker = 3", r"worker in .*/faultline.toml is 3; it must be a table: \[worker\]"),
        ("timeout = 0", "timeout in .*/faultline.toml is 0; it must be a number of seconds greater than 0"),
        ("[serve]\nport = 'x'", r"port in \[serve\] of .*/faultline.toml is 'x'; it must be a whole number from 0 to 65535"),
        ("[serve]\nquiet = 1", r"quiet in \[serve\] of .*; it must be true or false"),
        ("[worker]\nprocesses = " + "9" * 5000, "faultline.toml is not valid TOML: Exceeds the limit"),
        ("x = " + "[" * 5000, "faultline.toml is not valid TOML: it is nested too deeply"),
        ("pg-bni = 'x'", r"did you mean pg_bin\?$"),
        ("[worker]\nhealth-port = 1\nhealth_port = 2", r"health_port in \[worker\] of .* stands there twice"),
        ("[worker]\nqueue = ['mail=²']", r"queue in \[worker\] of .* has 'mail=²'; write NAME or NAME=CONCURRENCY"),
        ('dsn = "a\\u0000b"', "dsn in .*/faultline.toml contains a NUL character"),
    ],
)
def test_what_would_never_take_effect_is_an_error(folder: Path, text: str, told: str) -> None:
    (folder / "faultline.toml").write_text(text)

    with pytest.raises(ConfigError, match=told):
        given()


@pytest.mark.parametrize("written", ["dsn = 'postgresql://jürgen@h/x'".encode("latin-1"), "dsn = 'x'".encode("utf-16")])
def test_a_file_in_another_encoding_is_an_error(folder: Path, written: bytes) -> None:
    (folder / "faultline.toml").write_bytes(written)

    with pytest.raises(ConfigError, match=r"faultline.toml is not UTF-8; save it as UTF-8"):
        given()


def test_a_file_may_begin_with_the_mark_of_utf_8(folder: Path) -> None:
    (folder / "faultline.toml").write_bytes(b"\xef\xbb\xbf[worker]\ngrace = 1\n")

    assert given().grace == 1


def test_a_file_that_cannot_be_read_is_an_error(folder: Path) -> None:
    (folder / "faultline.toml").mkdir()

    with pytest.raises(ConfigError, match=r"faultline.toml cannot be read: Is a directory"):
        given()


def test_a_project_file_of_others_may_be_anything(folder: Path) -> None:
    (folder / "pyproject.toml").write_bytes(b"dependencies = ['faultline-queue'] \xff")

    assert given() == WorkerSettings()


@pytest.mark.parametrize(
    "text",
    [
        "[tool]\nfaultline.worker.grace = 3",
        "[tool . faultline . worker]\ngrace = 3",
        "[tool.'faultline'.worker]\ngrace = 3",
        "[tool]\nfaultline = {worker = {grace = 3}}",
    ],
)
def test_the_table_of_a_project_file_may_be_written_in_any_way(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)

    assert given().grace == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("faultline.toml", "dsn = ['postgresql://u:secret@h/x']"),
        ("faultline.toml", "[dsn]\npassword = 'secret'"),
        ("faultline.toml", "worker = 'postgresql://u:secret@h/x'"),
        ("faultline.toml", "timeout = ['postgresql://u:secret@h/x']"),
        ("pyproject.toml", "[tool]\nfaultline = 'postgresql://u:secret@h/x'"),
    ],
)
def test_a_message_about_a_file_shows_no_password(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)

    with pytest.raises(ConfigError, match="; it must be ") as refused:
        given()

    assert "secret" not in str(refused.value)


def test_a_wrong_value_of_a_project_file_is_named_as_it_stands_there(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.faultline.worker]\ngrace = -1\n")

    with pytest.raises(ConfigError, match=r"grace in \[tool.faultline.worker\] of .*/pyproject.toml is -1; it must be"):
        given()


@pytest.mark.parametrize(
    ("words", "environ", "told"),
    [
        (("--grace", "soon"), {}, "--grace is 'soon'; it must be a number of seconds of at least 0"),
        (("--processes", "300"), {}, "--processes is '300'; it must be a whole number from 1 to 256"),
        ((), {"FAULTLINE_WORKER_GRACE": "soon"}, "FAULTLINE_WORKER_GRACE is 'soon'; it must be a number of seconds"),
        ((), {"FAULTLINE_WORKER_QUIET": "maybe"}, "FAULTLINE_WORKER_QUIET is 'maybe'; it must be true or false"),
        ((), {"FAULTLINE_WORKER_QUEUE": "mail=²"}, "FAULTLINE_WORKER_QUEUE has 'mail=²'; write NAME or NAME=CONCURRENCY"),
        (("--queue", "a=" + "9" * 5000), {}, "--queue has 'a=99999"),
        (("--queue", "a=1", "--queue", "a=2"), {}, "--queue names a twice"),
    ],
)
def test_a_wrong_value_is_told_with_where_it_came_from(words: tuple[str, ...], environ: dict[str, str], told: str) -> None:
    asked = faultline("worker", "m:app", *words, **environ)

    assert asked.returncode == 2
    assert asked.stderr.startswith(f"faultline: {told}")
    assert asked.stderr.count("\n") == 1


def test_the_database_of_a_file_counts_less_than_the_environment(folder: Path) -> None:
    (folder / "faultline.toml").write_text('dsn = "postgresql://file"\ntimeout = 5\n')
    none: dict[str, str] = {}
    other = {"DATABASE_URL": "postgresql://environment"}

    File.of(folder).apply(none)
    File.of(folder).apply(other)

    assert none == {"FAULTLINE_DSN": "postgresql://file", "FAULTLINE_TIMEOUT": "5"}
    assert "FAULTLINE_DSN" not in other


def test_every_variable_that_the_package_names_is_in_the_catalogue() -> None:
    kinds = (CommonSettings, WorkerSettings, ServeSettings)
    known = {name for kind in kinds for one in settings_of(kind) for name in one.variables}
    source = "".join(path.read_text() for path in Path(faultline_package.__file__).parent.rglob("*.py"))
    # Not settings of a command: manage.py sets the one for its worker, the plugin of pytest reads the other.
    others = {"FAULTLINE_DJANGO_DATABASE", "FAULTLINE_TEST_DSN"}

    assert set(re.findall(r"\bFAULTLINE_(?!WORKER_…|SERVE_…)[A-Z_]+\b", source)) - known == others

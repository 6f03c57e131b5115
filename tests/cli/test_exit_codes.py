"""Scripts tell a typing error from a refusal by the exit code: 2 is for words without sense, 1 for what cannot be done."""

from __future__ import annotations

import socket

import pytest

from tests.cli.commands import faultline

NOBODY = "0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"
SPAN = "is no span of time; write seconds, or 90s, 5m, 1h30m, 2d"
WHICH = "name jobs by their ids, or all failed ones with --failed"
APP = "tests.worker.jobs:app"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("enqueue", "t", "[1]"), "the arguments must be a JSON object"),
        (("enqueue", "t", "{"), "the arguments are no JSON"),
        (("enqueue", "t", "--delay", "soon"), f"soon {SPAN}"),
        (("jobs", "--younger", "5 minutes"), f"5 minutes {SPAN}"),
        (("jobs", "--older", "-1"), f"-1 {SPAN}"),
        (("jobs", "--after", "zzz"), "--after zzz: no place in this list"),
        (("job", "nonsense"), "nonsense is no job id"),
        (("cancel", "nonsense"), "nonsense is no job id"),
        (("retry", "nonsense"), "nonsense is no job id"),
        (("retry",), WHICH),
        (("retry", NOBODY, "--queue", "q"), WHICH),
        (("worker", APP, "--queue", "a=x"), "--queue a=x: write NAME or NAME=CONCURRENCY"),
        (("worker", "tests.worker.jobs:nobody"), "tests.worker.jobs has no Faultline application named nobody"),
        (("worker", "tests.nobody:app"), "there is no module tests.nobody"),
        (("api-keys", "create", "x", "--scope", "bogus"), "--scope bogus: there is read, enqueue, operate and admin"),
        (("api-keys", "create", "", "--scope", "read"), "a key's name has 1 to 100 characters"),
        (("api-keys", "revoke", "zzz"), "zzz is no id of a key"),
        (("serve", "--trusted-proxies", "me"), "the trusted proxies are 'me'"),
        (("bench", "nonsense"), "there is nothing named nonsense to measure"),
        (("drill", "nonsense"), "there is no drill named nonsense"),
        (("jobs", "--dsn", "nonsense"), "this is no DSN"),
        (("jobs", "--dsn", ""), "no database was named"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_words_that_make_no_sense_are_one_line_and_exit_code_2(dsn: str, words: tuple[str, ...], message: str) -> None:
    asked = faultline(*words, **({} if "--dsn" in words else {"FAULTLINE_DSN": dsn}))

    assert asked.stderr.startswith(f"faultline: {message}")
    assert (asked.returncode, asked.stdout, asked.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("jobs", "--state", "bogus"), "--state"),
        (("api-keys", "create", "x", "--scope", "read", "--days", "0"), "--days"),
        (("migrate", "--wait", "-1"), "--wait"),
        (("migrate", "--wait", "inf"), "--wait"),
        (("recover", "--wait", "-1"), "--wait"),
        (("recover", "--floor", "-1"), "--floor"),
        (("soak", "--faults", "nonsense"), "--faults"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_option_without_sense_is_named(dsn: str, words: tuple[str, ...], option: str) -> None:
    asked = faultline(*words, FAULTLINE_DSN=dsn)

    assert (asked.returncode, asked.stdout) == (2, "")
    assert f"Invalid value for {option}" in asked.stderr.replace("'", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("job", NOBODY), f"there is no job {NOBODY}"),
        (("cancel", NOBODY), f"there is no job {NOBODY}"),
        (("retry", NOBODY), f"there is no job {NOBODY}"),
        (("api-keys", "revoke", NOBODY), f"there is no key {NOBODY}"),
        (("top",), "this is no terminal"),
        (("serve", "--host", "0.0.0.0"), "there are no API keys"),  # noqa: S104 - it does not listen
        (("jobs", "--dsn", "postgresql://ada@127.0.0.1:1/x"), "cannot use postgresql://ada@127.0.0.1:1/x"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_here_and_now_is_told_with_exit_code_1(dsn: str, words: tuple[str, ...], message: str) -> None:
    asked = faultline(*words, **({} if "--dsn" in words else {"FAULTLINE_DSN": dsn}))

    assert asked.stderr.startswith(f"faultline: {message}")
    assert (asked.returncode, asked.stdout) == (1, "")


@pytest.mark.parametrize("option", ["--metrics-port", "--health-port"])
def test_a_port_that_is_taken_is_exit_code_1_since_it_may_be_free_again(dsn: str, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        asked = faultline("worker", APP, "--quiet", option, str(taken.getsockname()[1]), FAULTLINE_DSN=dsn)

    assert asked.returncode == 1
    assert f"choose another {option}" in asked.stderr

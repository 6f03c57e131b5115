"""Scripts tell a typing error from a refusal by the exit code: 2 is for words without sense, 1 for what cannot be done."""

from __future__ import annotations

import socket

import pytest

from tests.cli.commands import faultline

NOBODY = "0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"
DURATION = "; write seconds, or 90s, 5m, 1h30m, 2d"
WHICH = "give job ids, or select failed jobs with --failed"
APP = "tests.worker.jobs:app"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("enqueue", "t", "[1]"), "the arguments must be a JSON object"),
        (("enqueue", "t", "{"), "invalid JSON in the arguments"),
        (("enqueue", "t", "--delay", "soon"), f"invalid duration soon{DURATION}"),
        (("jobs", "--younger", "5 minutes"), f"invalid duration 5 minutes{DURATION}"),
        (("jobs", "--older", "-1"), f"invalid duration -1{DURATION}"),
        (("jobs", "--after", "zzz"), "invalid cursor zzz for this list"),
        (("job", "nonsense"), "invalid job id nonsense"),
        (("cancel", "nonsense"), "invalid job id nonsense"),
        (("retry", "nonsense"), "invalid job id nonsense"),
        (("retry",), WHICH),
        (("retry", NOBODY, "--queue", "q"), WHICH),
        (("worker", APP, "--queue", "a=x"), "--queue has 'a=x'; write NAME or NAME=CONCURRENCY"),
        (("worker", ""), "invalid application ''; write MODULE:APP, for example shop.jobs:app"),
        (("worker", ":app"), "invalid application ':app'; write MODULE:APP, for example shop.jobs:app"),
        (("worker", "./shop:app"), "invalid application './shop:app'; write MODULE:APP, for example shop.jobs:app"),
        (("worker", "shop.py"), "no module shop.py"),
        (("worker", "tests.worker.jobs:nobody"), "tests.worker.jobs has no Faultline application named nobody"),
        (("worker", "tests.nobody:app"), "no module tests.nobody"),
        (("api-keys", "create", "x", "--scope", "bogus"), "unknown scope bogus; use read, enqueue, operate or admin"),
        (("api-keys", "create", "", "--scope", "read"), "the name of a key must have 1 to 100 characters"),
        (("api-keys", "revoke", "zzz"), "invalid key id zzz"),
        (("serve", "--trusted-proxies", "me"), "invalid trusted proxies 'me'"),
        (("bench", "nonsense"), "unknown part nonsense; choose one of"),
        (("drill", "nonsense"), "there is no drill named nonsense"),
        (("jobs", "--dsn", "nonsense"), "invalid DSN: it does not begin with postgresql://, and a part of it is"),
        (("jobs", "--dsn", "postgresql+psycopg://u:p@h/d"), "invalid DSN: it is a URL of SQLAlchemy. Take the driver out: "),
        (("jobs", "--dsn", "postgresql://h/d?colour=red"), "invalid DSN: invalid URI query parameter; the text"),
        (("jobs", "--dsn", ""), "no database is configured: pass --dsn, set FAULTLINE_DSN"),
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
        (("recover", "--floor", "99999999999999999999"), "--floor"),
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
        (("job", NOBODY), f"no job {NOBODY}"),
        (("cancel", NOBODY), f"no job {NOBODY}"),
        (("retry", NOBODY), f"no job {NOBODY}"),
        (("api-keys", "revoke", NOBODY), f"no key {NOBODY}"),
        (("top",), "standard output is not a terminal"),
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
    assert f"choose another {option.replace('port', 'host')} or {option}" in asked.stderr

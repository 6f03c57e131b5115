from __future__ import annotations

import pytest

from faultline.core.errors import ConfigError
from faultline.core.settings import choose_dsn, without_password


def test_a_given_dsn_comes_before_the_environment() -> None:
    environ = {"FAULTLINE_DSN": "one", "DATABASE_URL": "two"}

    assert choose_dsn("given", environ) == "given"
    assert choose_dsn(None, environ) == "one"
    assert choose_dsn(None, {"DATABASE_URL": "two"}) == "two"


def test_a_forgotten_variable_is_an_error_that_names_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"FAULTLINE_DSN.*DATABASE_URL.*embedded:"):
        choose_dsn(None, {"FAULTLINE_DSN": ""})


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://ada:secret@host/db", "postgresql://ada:***@host/db"),
        ("postgresql://ada@host/db", "postgresql://ada@host/db"),
        ("host=h password=secret dbname=d", "host=h password=*** dbname=d"),
        ("host=h password='a \\' secret' dbname=d", "host=h password=*** dbname=d"),
        ("postgresql://host/db?password=secret", "postgresql://host/db?password=***"),
        ("postgresql://ada:se@cret@host/db", "postgresql://ada:***@host/db"),
        ("postgresql://ada:se cret@host/db", "postgresql://ada:***@host/db"),
        ("postgresql:/ada:secret@host/db", "postgresql:/ada:***@host/db"),
        ("password=a\\ secret host=h", "password=*** host=h"),
        ("postgresql://ada:secret", "postgresql://ada:***"),
        ("postgresql://ada:secret/db", "postgresql://ada:***/db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("postgresql://h1:5432,h2:5433/db", "postgresql://h1:5432,h2:5433/db"),
        ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db"),
    ],
)
def test_a_password_is_never_shown(dsn: str, shown: str) -> None:
    assert without_password(dsn) == shown

"""Commands that come from other distributions: there where they are installed, and named where they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from faultline.cli import plugins
from faultline.cli.main import app
from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNNER = CliRunner()


@pytest.fixture
def product_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: [])  # noqa: ARG005
    plugins.installed.cache_clear()
    yield
    plugins.installed.cache_clear()


def test_the_proof_adds_its_commands() -> None:
    listed = RUNNER.invoke(app, ["--help"]).output

    assert "\nProof:\n" in listed
    assert list(plugins.installed()) == list(plugins.PROOF)
    assert "failure story" in RUNNER.invoke(app, ["drill", "--help"]).output


@pytest.mark.usefixtures("product_alone")
def test_the_product_alone_does_not_list_them() -> None:
    listed = RUNNER.invoke(app, ["--help"])

    assert listed.exit_code == 0
    assert "Proof" not in listed.output


@pytest.mark.usefixtures("product_alone")
@pytest.mark.parametrize("command", plugins.PROOF)
def test_who_asks_for_one_without_the_proof_is_told_where_it_is(command: str) -> None:
    asked = RUNNER.invoke(app, [command])

    assert isinstance(asked.exception, ConfigError)
    assert "faultline-queue[proof]" in str(asked.exception)
    assert "Did you mean" not in asked.output


@pytest.mark.usefixtures("product_alone")
def test_a_word_that_is_no_command_is_not_taken_for_one_of_the_proof() -> None:
    asked = RUNNER.invoke(app, ["dril"])

    assert asked.exit_code == 2
    assert "No such command" in asked.output
    assert "proof]" not in asked.output

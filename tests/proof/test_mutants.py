"""Every guard has a mutant, every mutant takes out what it says, and what is taken out is noticed.

The whole proof is `faultline prove`; here a few guards of each kind stand for all.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from faultline.cli.main import app as command_line
from faultline.core.errors import ConfigError
from faultline_proof import prove
from faultline_proof.commands.proof import _print_proofs
from faultline_proof.mutants import Cut, Disarmed, Mutant, ground, submissions, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Servers

SAMPLE = [
    "complete: compares the token",
    "lock_lease: locks the row",
    "fence: asks for the time after the lock",
    "claim: passes over locked rows",
    "lost_jobs: blames nobody when several had started",
    "insert_or_find_jobs: takes keys in one order",
    "enqueue_many: commits to the disk",
    "reap: looks for names where nobody can put any",
    "complete: plans for full tables",
    "clock: reads no setting",
    "state: known_state",
    "ledger: ledger_pkey",
    "open_jobs: token_grows",
    "journal: at is not null",
    "refuse: is not for everyone to call",
]


@pytest.fixture(scope="module")
def template(servers: Servers) -> Iterator[str]:
    server_dsn = make_conninfo(servers.template("default"), dbname="postgres")
    with prove.template(server_dsn) as template_dsn:
        yield template_dsn


@pytest.mark.parametrize("guard", SAMPLE)
def test_a_guard_that_is_taken_out_is_missed(template: str, guard: str) -> None:
    (mutant,) = [mutant for mutant in prove.known(template) if mutant.guard == guard]

    proof = prove.probed(template, mutant)

    assert proof is not None
    assert proof.caught_by


def test_every_mutant_has_a_name_of_its_own_and_is_understood_by_postgresql(template: str) -> None:
    mutants = prove.known(template)

    assert len({mutant.guard for mutant in mutants}) == len(mutants)
    with psycopg.connect(template, autocommit=True) as connection:
        for mutant in mutants:
            with connection.transaction(force_rollback=True):
                connection.execute(mutant.sql.encode())


def test_every_constraint_and_trigger_and_every_function_has_a_mutant(template: str) -> None:
    guards = {mutant.guard for mutant in prove.known(template)}
    with psycopg.connect(template) as connection:
        listed = connection.execute(
            "select coalesce(nullif(conrelid, 0)::regclass::text, contypid::regtype::text) || ': ' || conname"
            " from pg_constraint where connamespace = 'faultline'::regnamespace and contype <> 'n'"
            " union all select tgrelid::regclass::text || ': ' || tgname from pg_trigger join pg_class c on c.oid = tgrelid"
            " where c.relnamespace = 'faultline'::regnamespace and not tgisinternal"
        ).fetchall()

    assert {name.removeprefix("faultline.") for (name,) in listed} <= guards
    assert {guard.split(": ")[0] for guard in guards} >= set(texts.functions())


def test_what_is_no_guard_still_stands_in_the_texts() -> None:
    assert ground.NO_GUARDS.keys() | ground.NO_GUARDS_BEFORE_18.keys() <= {cut.name for cut, _ in texts.common()}


@pytest.mark.parametrize("guards", [submissions.SINCE_18, submissions.BEFORE_18], ids=["since 18", "before 18"])
def test_what_stands_for_one_version_of_the_server_still_stands_in_the_texts(guards: texts.Guards) -> None:
    assert all(cut.mutant() for cut in texts.cuts(guards))


@pytest.mark.parametrize("piece", ["a text that is not there", "faultline"])
def test_a_mutant_whose_text_has_changed_is_named(piece: str) -> None:
    with pytest.raises(Disarmed, match="complete: compares the colour"):
        Cut("complete", "compares the colour", piece).mutant()


def test_a_mutant_that_is_no_sql_is_not_taken_for_caught(template: str) -> None:
    no_sql = Cut("complete", "compares the colour", "j.lease_owner = l.owner", "j.colour = l.owner").mutant()

    with pytest.raises(Disarmed, match="compares the colour"):
        prove.probed(template, no_sql)


def test_an_unknown_guard_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="there are:\n  fence: locks the row"):
        prove.named("tea", [Mutant("fence: locks the row", ("fence",), "")])


@pytest.mark.long
def test_the_command_shows_who_noticed(dsn: str) -> None:
    shown = CliRunner().invoke(command_line, ["prove", "--dsn", dsn, "--only", "LOCK_LEASE: COMPARES THE", "--json"])

    assert shown.exit_code == 0, shown.output
    proofs = json.loads(shown.stdout)
    assert [proof["guard"] for proof in proofs] == ["lock_lease: compares the token", "lock_lease: compares the owner"]
    assert all(proof["caught_by"].startswith("probe: ") and proof["what"] for proof in proofs)


def test_a_mutant_that_is_no_sql_is_told_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    _print_proofs(
        [prove.Proof("noticed", "a probe", "it saw this"), prove.Proof("disarmed", None, "it is no SQL")], with_sights=False
    )

    assert capsys.readouterr().out.splitlines() == ["noticed   a probe", "disarmed  NOBODY NOTICED", "    it is no SQL"]

"""Take the guards out of the protocol, one at a time, and see who notices. One that nobody misses is useless or untested.

Each mutant is put into a database of its own, cloned from a migrated one, and shown to the probes, those about the same
thing first, until one of them fails. What no probe has noticed is shown to the slower catchers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline.core.errors import ConfigError, SetupError
from faultline.store import scratch
from faultline.store.translation import connection_was_lost, translated
from faultline_proof import mutants
from faultline_proof.catchers import catchers
from faultline_proof.mutants import Disarmed, Mutant
from faultline_proof.probes import PROBES
from faultline_proof.sessions import STAGE, Sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from faultline_proof.probes import Probe

PROCESSES = 2
#: Errors by which PostgreSQL says that it does not understand a text: such a mutant has no guard less, it is none.
_NO_SQL = ("42601", "42702", "42703", "42804", "42883", "42P01")


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of one mutant. `what` is what its catcher saw."""

    guard: str
    caught_by: str | None
    what: str = ""


class Unsound(Exception):
    """A catcher fails although no guard is missing: it, or the protocol, must be put right first."""


def prove(
    server_dsn: str,
    *,
    only: str | None = None,
    tell: Callable[[Proof, int], None] = lambda proof, total: None,  # noqa: ARG005
    tell_survivor: Callable[[str], None] = lambda guard: None,  # noqa: ARG005
    processes: int = PROCESSES,
) -> list[Proof]:
    """Show every mutant, or those whose name contains `only`, to the catchers. `tell` hears of each as it is known,
    `tell_survivor` of each that no probe has noticed: the slower catchers take minutes for each.
    """
    with translated(server_dsn), template(server_dsn) as template_dsn:
        chosen = named(only, known(template_dsn))
        proofs: list[Proof] = []
        survivors: list[Mutant] = []
        with _pool(processes) as pool:
            for failed in pool.map(play_sound, [template_dsn] * processes, [PROBES[n::processes] for n in range(processes)]):
                if failed is not None:
                    raise Unsound(f"on the sound protocol, {failed.caught_by} saw: {failed.what}")
            answers = {pool.submit(probed, template_dsn, mutant): mutant for mutant in chosen}
            for answer in as_completed(answers):
                try:
                    proof = answer.result()
                except Disarmed as error:
                    # Told at the end with those that nobody noticed: the others are worth hearing of.
                    proof = Proof(answers[answer].guard, None, str(error))
                if proof is None:
                    survivors.append(answers[answer])
                    tell_survivor(answers[answer].guard)
                else:
                    proofs.append(proof)
                    tell(proof, len(chosen))
            slow = {pool.submit(shown, server_dsn, mutant): mutant for mutant in survivors}
            for looked in as_completed(slow):
                try:
                    proofs.append(looked.result())
                except Unsound as error:
                    # A machine that does too much at once breaks a drill, too. The others are worth hearing of.
                    proofs.append(Proof(slow[looked].guard, None, str(error)))
                tell(proofs[-1], len(chosen))
    order = {mutant.guard: place for place, mutant in enumerate(chosen)}
    return sorted(proofs, key=lambda proof: order[proof.guard])


def known(template_dsn: str) -> list[Mutant]:
    """Every mutant of the protocol as this server has it."""
    with psycopg.connect(template_dsn, autocommit=True) as connection:
        return mutants.every(connection)


def named(only: str | None, known_ones: Sequence[Mutant]) -> list[Mutant]:
    chosen = [mutant for mutant in known_ones if only is None or only.lower() in mutant.guard.lower()]
    if not chosen:
        guards = "\n  ".join(mutant.guard for mutant in known_ones)
        raise ConfigError(f"no guard's name contains {only!r}; there are:\n  {guards}")
    return chosen


# The databases


@contextlib.contextmanager
def template(server_dsn: str) -> Iterator[str]:
    """A migrated database that is only ever cloned."""
    with scratch.database(server_dsn) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            if connection.info.parameter_status("is_superuser") != "on":
                raise SetupError(
                    f"{connection.info.user} is no superuser there, and probes write past triggers, as a restore does; "
                    "name a server of your own with --dsn, or leave it out"
                )
            connection.execute(STAGE)
        yield dsn


@contextlib.contextmanager
def _cloned(template_dsn: str, mutant: Mutant | None) -> Iterator[str]:
    name = f"faultline_mutant_{secrets.token_hex(6)}"
    source = str(conninfo_to_dict(template_dsn)["dbname"])
    dsn = make_conninfo(template_dsn, dbname=name)
    with psycopg.connect(make_conninfo(template_dsn, dbname="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} template {}").format(*map(sql.Identifier, (name, source))))
        try:
            if mutant is not None:
                with psycopg.connect(dsn, autocommit=True) as inside:
                    inside.execute(mutant.sql.encode())
            yield dsn
        finally:
            connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


class ProbeDatabase:
    """A database on which probes are played one after the other. A probe that failed leaves nothing behind: the next one is
    played on a new database.
    """

    def __init__(self, template_dsn: str, mutant: Mutant | None = None) -> None:
        self._template_dsn, self._mutant = template_dsn, mutant
        self._stack = contextlib.ExitStack()
        self._sessions: Sessions | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def play(self, probe: Probe) -> None:
        """Raises what the probe saw if it did not end as promised."""
        if self._sessions is None:
            dsn = self._stack.enter_context(_cloned(self._template_dsn, self._mutant))
            self._sessions = self._stack.enter_context(Sessions(dsn))
        try:
            probe.play(self._sessions)
            self._sessions.clear()
        except BaseException:
            self._close()
            raise

    def play_patiently(self, probe: Probe) -> None:
        """Play a probe that failed twice more: a machine that stood still in the middle of a statement, for 50 ms or for
        a lease, looks like a protocol that is wrong. What is wrong is wrong each time.
        """
        for tries_left in (2, 1, 0):
            try:
                self.play(probe)
            except Exception:
                if not tries_left:
                    raise
            else:
                return

    def _close(self) -> None:
        self._sessions = None
        self._stack.close()


# What the processes do


def probed(template_dsn: str, mutant: Mutant) -> Proof | None:
    """Show one mutant to the probes. None if all of them ended as promised.

    What a probe sees may come of those that were played before it: dead rows, above all. So it must see it in a database of
    its own, too.
    """
    by_relevance = sorted(PROBES, key=lambda probe: _distance(probe, mutant))
    with ProbeDatabase(template_dsn, mutant) as stage:
        for probe in by_relevance:
            # The second time, nothing was played there before.
            seen = _first_to_fail(stage.play, mutant.guard, [probe]) and _first_to_fail(stage.play, mutant.guard, [probe])
            if seen:
                return seen
    return None


def play_sound(template_dsn: str, probes: Sequence[Probe]) -> Proof | None:
    """Play probes on the protocol as it is. None if all of them ended as promised."""
    with ProbeDatabase(template_dsn) as stage:
        return _first_to_fail(stage.play_patiently, "", probes)


def _distance(probe: Probe, mutant: Mutant) -> tuple[bool, int]:
    """The first word of what a mutant is about weighs most."""
    return mutant.about[0] not in probe.about, -len(probe.about.intersection(mutant.about))


def _first_to_fail(play: Callable[[Probe], None], guard: str, probes: Sequence[Probe]) -> Proof | None:
    for probe in probes:
        try:
            play(probe)
        except Exception as seen:  # noqa: BLE001 - whatever it was, the probe has noticed something
            _refuse_to_believe(seen, guard)
            return Proof(guard, f"probe: {probe.name}", _told(seen))
    return None


def _told(seen: Exception) -> str:
    first_line = str(seen).split("\n", 1)[0]
    return first_line if isinstance(seen, AssertionError) else f"{type(seen).__name__}: {first_line}"


def _refuse_to_believe(seen: Exception, guard: str) -> None:
    """A lost server and a text that is no SQL break every probe, and say nothing about the guard."""
    cause = seen if isinstance(seen, psycopg.Error) else seen.__cause__
    if connection_was_lost(cause):
        raise seen
    if isinstance(cause, psycopg.Error) and cause.sqlstate in _NO_SQL:
        raise Disarmed(f"{guard}: the mutant is no SQL that PostgreSQL understands: {cause}") from seen


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that finish what they have begun when Ctrl-C is pressed, and begin nothing more."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_end_with_parent)
    try:
        with _deaf_to_interrupts():
            for _ in range(processes):
                pool.submit(os.getpid)  # starts one
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What is started in here never hears of Ctrl-C: a terminal sends it to everyone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_with_parent() -> None:
    """A process whose parent was killed must not go on by itself."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


# The slower catchers


def shown(server_dsn: str, mutant: Mutant) -> Proof:
    """Show a mutant that no probe has noticed to the slower catchers."""
    for catcher in catchers():
        seen = catcher.run(server_dsn, mutant.sql)
        if seen is not None:
            healthy = catcher.run(server_dsn, "")
            if healthy is not None:
                raise Unsound(f"on the sound protocol, {catcher.kind} {catcher.name} saw: {healthy}")
            return Proof(mutant.guard, f"{catcher.kind}: {catcher.name}", seen)
    return Proof(mutant.guard, None)

"""Commands that show what Faultline does when things go wrong. They use a private PostgreSQL unless told otherwise."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - Typer looks at it
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli.commands.database import AsJson, resolved

if TYPE_CHECKING:
    from collections.abc import Collection

    from faultline_proof.prove import Proof
    from faultline_proof.verdict import Verdict

#: Never the environment's DSN: nobody wants a drill in production because a variable was set.
PrivateDsn = Annotated[str, typer.Option("--dsn", help="Another database server to use; scratch databases are made there.")]
EMBEDDED = "embedded:"


def demo(dsn: PrivateDsn = EMBEDDED) -> None:
    """Watch a stale write being refused, and a killed worker's jobs being requeued. Starts a private PostgreSQL."""
    from faultline.store.database import Database  # noqa: PLC0415 - late, so that --help is quick
    from faultline.store.install import migrate  # noqa: PLC0415
    from faultline_proof import drill as drills  # noqa: PLC0415
    from faultline_proof.drills import DRILLS, crashes  # noqa: PLC0415

    begun = time.monotonic()
    with resolved(dsn) as found:
        with Database(found).connect() as connection:
            migrate.migrate(connection)
            version = connection.info.server_version // 10000
        print(f"PostgreSQL {version} is up and migrated. Worker A claims a job and stalls; its lease is 1 second.\n")
        race = drills.run(DRILLS["lease-race"], found)
        _print_trace(race)
        _print_checks(race)
        print(f"\n{crashes.JOBS:,} jobs run in two worker processes; one of them is killed with SIGKILL halfway.\n")
        batch = drills.run(DRILLS["crash-mid-execution"], found)
        _print_trace(batch)
        _print_checks(batch)
    passed = race.passed and batch.passed
    print(f"\n{'All promises held' if passed else 'A PROMISE WAS BROKEN'}, {time.monotonic() - begun:.1f} s in total.")
    if not passed:
        raise typer.Exit(1)


def drill(
    name: Annotated[str, typer.Argument(help="Which one; `all` runs every drill.")],
    dsn: PrivateDsn = EMBEDDED,
    log: Annotated[bool, typer.Option("--log", help="Print every event of every process.")] = False,  # noqa: FBT002
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw what happened, one lane for each epoch.")] = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Run a failure story against a real PostgreSQL and say whether the promises held."""
    from faultline_proof import drill as drills  # noqa: PLC0415
    from faultline_proof.drills import chosen  # noqa: PLC0415

    verdicts: list[Verdict] = []
    with resolved(dsn) as found:
        for one in chosen(name):
            verdict = drills.run(one, found)
            verdicts.append(verdict)
            if as_json:
                print(json.dumps(_told(verdict), default=str), flush=True)
                continue
            _print_trace(verdict, everything=log)
            _print_checks(verdict)
    if html is not None:
        from faultline_proof import timeline  # noqa: PLC0415

        html.write_text(timeline.render(verdicts), encoding="utf-8")
    if not all(verdict.passed or verdict.skipped is not None for verdict in verdicts):
        raise typer.Exit(1)


def explore(
    scenario: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    dsn: Annotated[str | None, typer.Option(help="A server to use instead of a private one.")] = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Try every order of small scenes, statement by statement, lock waits included."""
    from faultline_proof import explorer  # noqa: PLC0415
    from faultline_proof.servers import IN_MEMORY, own_server  # noqa: PLC0415

    def tell(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    with resolved(dsn) if dsn else own_server(IN_MEMORY) as found:
        exploration = explorer.explore(found, only=scenario, tell=tell)
    if as_json:
        print(json.dumps(asdict(exploration), default=str))
    if exploration.broken is not None:
        raise typer.Exit(1)


def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="How many histories to play, from --first on.")] = 100,
    seed: Annotated[int | None, typer.Option(help="Play this one only, and print its history.")] = None,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="How many to play at once.")] = 2,
    twice: Annotated[bool, typer.Option("--twice", help="Play all again in other company, and compare.")] = False,  # noqa: FBT002
    faults: Annotated[str | None, typer.Option(help="Only these kinds, with commas.", show_default="all")] = None,
    dsn: Annotated[str | None, typer.Option(help="A server to use instead of a private one.")] = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Play seeded histories of the simulated world: crashes, refused statements, locked tables. One seed, one history."""
    from faultline_proof.commands.tally import Tally  # noqa: PLC0415
    from faultline_proof.servers import IN_MEMORY, own_server  # noqa: PLC0415
    from faultline_proof.world.simulate import played_again  # noqa: PLC0415
    from faultline_proof.world.simulate import simulate as play  # noqa: PLC0415
    from faultline_proof.world.storm import KINDS  # noqa: PLC0415

    kinds = _kinds(faults, KINDS)
    chosen = [seed] if seed is not None else range(first, first + seeds)
    tally = Tally(len(chosen))
    played, differences = [], []
    with resolved(dsn) if dsn else own_server(IN_MEMORY) as found:
        try:
            for outcome in play(found, chosen, processes=processes, keep_history=twice or seed is not None, faults=kinds):
                tally.add(outcome)
                if twice:
                    played.append(outcome)
                if as_json:
                    print(json.dumps(asdict(outcome)), flush=True)
                elif outcome.broken or seed is not None:
                    print("\n".join(outcome.history))
                    print(f"seed {outcome.seed}: {'; '.join(outcome.broken) or 'sound'}, digest {outcome.digest}")
            differences = list(played_again(found, played, processes=processes, faults=kinds))
        except KeyboardInterrupt:
            print("interrupted; so far:", file=sys.stderr)
    out = sys.stderr if as_json else sys.stdout
    print(tally.summary(), file=out)
    if twice:
        print("\n".join([*differences, f"{len(played):,} played twice, {len(differences):,} differed"]), file=out)
    if tally.broken or differences:
        raise typer.Exit(1)


def _kinds(asked: str | None, known: Collection[str]) -> tuple[str, ...]:
    """The kinds of faults that were asked for."""
    if asked is None:
        return tuple(known)
    kinds = tuple(kind.strip() for kind in asked.split(","))
    if not set(kinds) <= set(known):
        raise typer.BadParameter(f"the kinds of faults are: {', '.join(known)}", param_hint="--faults")
    return kinds


def soak(
    minutes: Annotated[float, typer.Option(min=0.01, help="How long faults happen.")] = 10.0,
    workers: Annotated[int, typer.Option(min=2, max=64, help="Worker processes.")] = 4,
    seed: Annotated[int | None, typer.Option(help="The same plan of faults again.", show_default="a new one")] = None,
    faults: Annotated[str | None, typer.Option(help="Only these kinds, with commas.", show_default="all")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as one page.")] = None,
) -> None:
    """Work under kills, crashes, locks, cancelled statements and hostile jobs; then look for what is lost or done twice."""
    import secrets  # noqa: PLC0415

    from faultline_proof.commands.progress import Progress  # noqa: PLC0415
    from faultline_proof.soak import KINDS, Plan, Soak  # noqa: PLC0415
    from faultline_proof.verdict import CannotPlay  # noqa: PLC0415

    plan = Plan(
        seconds=minutes * 60,
        workers=workers,
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
        faults=_kinds(faults, KINDS),
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which says what was found, too
    try:
        with Progress(sys.stderr) as progress:
            report = Soak(plan, progress.show).run()
    except CannotPlay as error:
        raise typer.BadParameter(f"a standby cannot be promoted here: {error}", param_hint="--faults") from error
    for file, written in ((json_file, report.json), (html, report.html)):
        if file is not None:
            file.write_text(written(), encoding="utf-8")
    print("\n".join(report.lines()))
    if not report.passed:
        raise typer.Exit(1)
    if report.interrupted:
        raise typer.Exit(130)


def _print_survivor(guard: str) -> None:
    print(f"no probe has noticed: {guard}", file=sys.stderr, flush=True)


def prove(
    only: Annotated[str | None, typer.Option(help="Only guards whose name contains this.")] = None,
    dsn: Annotated[str | None, typer.Option(help="A server to use instead of a private one.")] = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Take the guards out of the protocol, one at a time, and show who notices. Exit code 1 if nobody does."""
    from faultline_proof import prove as proofs  # noqa: PLC0415
    from faultline_proof.servers import IN_MEMORY, own_server  # noqa: PLC0415

    begun = time.monotonic()
    known: list[Proof] = []

    def tell(proof: Proof, total: int) -> None:
        known.append(proof)
        if sys.stderr.isatty():
            print(f"{len(known)}/{total} {proof.guard:70.70}", end="\r", file=sys.stderr, flush=True)
        elif proof.caught_by is None:
            print(f"{len(known)}/{total} not noticed: {proof.guard}", file=sys.stderr, flush=True)
        elif len(known) % 100 == 0:
            print(f"{len(known)}/{total}", file=sys.stderr, flush=True)

    try:
        # In memory: a database is made and dropped for each guard, and most of the time would be the disk's.
        with resolved(dsn) if dsn else own_server(IN_MEMORY) as found:
            known = proofs.prove(found, only=only, tell=tell, tell_survivor=_print_survivor)
        stopped = False
    except KeyboardInterrupt:
        stopped = True
    except proofs.Unsound as unsound:
        print(f"faultline: {unsound}", file=sys.stderr)
        raise typer.Exit(1) from unsound
    unnoticed = sum(proof.caught_by is None for proof in known)
    if as_json:
        print(json.dumps([asdict(proof) for proof in known]))
    else:
        _print_proofs(known, with_sights=only is not None)
        print(
            f"\n{'Stopped. ' if stopped else ''}Guards taken out: {len(known)}, noticed: {len(known) - unnoticed}, "
            f"not noticed: {unnoticed}, in {time.monotonic() - begun:.0f} s."
        )
    if unnoticed or stopped:
        raise typer.Exit(130 if stopped else 1)


#: What a story is told with. The rest of the log is for those who ask for it.
_TOLD = ("lease_acquired", "execution_started", "stale_write_blocked", "lease_lost", "fault_took_effect", "worker_exit")
_LINES_MAX = 40


def _print_trace(verdict: Verdict, *, everything: bool = False) -> None:
    counts = Counter(event["event"] for event in verdict.trace)
    for event in verdict.trace:
        few = counts[event["event"]] <= _LINES_MAX and event["event"] in _TOLD and event.get("action") != "barrier"
        if everything or few or "level" not in event:  # what the drill itself has done has no level
            left_out = () if everything else ("at", "level", "worker")
            line = {"event": event["event"]} | {key: value for key, value in event.items() if key not in left_out}
            print(json.dumps(line, default=str))


def _print_checks(verdict: Verdict) -> None:
    if verdict.skipped is not None:
        print(f"\n{verdict.drill}: not played: {verdict.skipped}")
        return
    print(f"\n{verdict.drill}: {'passed' if verdict.passed else 'FAILED'}")
    faults = ", ".join(f"{fault} ({times} x)" for fault, times in verdict.faults.items())
    print(f"  {'ok    ' if faults else 'BROKEN'}  faults that took effect: {faults or 'none, so nothing was shown'}")
    for check in verdict.checks:
        print(f"  {'ok    ' if check.holds else 'BROKEN'}  {check.claim}: {_shown(check.found)}")


def _told(verdict: Verdict) -> object:
    checks = [{"claim": check.claim, "found": check.found, "holds": check.holds} for check in verdict.checks]
    facts = {"drill": verdict.drill, "passed": verdict.passed, "skipped": verdict.skipped, "faults": verdict.faults}
    return _plain({**facts, "checks": checks, "trace": verdict.trace})


def _plain(found: object) -> object:
    """What JSON can say. A check may have found anything: counts of pairs, sets of states."""
    if isinstance(found, dict):
        return {key if isinstance(key, str) else str(key): _plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple | set | frozenset):
        return [_plain(one) for one in found]
    return found


def _shown(found: object) -> str:
    if isinstance(found, list):
        return f"{len(found)} ({', '.join(map(str, found))})" if found else "none"
    return str(found)


def _print_proofs(proofs: list[Proof], *, with_sights: bool) -> None:
    width = max((len(proof.guard) for proof in proofs), default=0)
    for proof in proofs:
        print(f"{proof.guard:{width}}  {proof.caught_by or 'NOBODY NOTICED'}")
        # Of one that nobody noticed there is something to say only if it is no mutant at all.
        if proof.what and (with_sights or proof.caught_by is None):
            print(f"    {proof.what}")

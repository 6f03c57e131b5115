"""Database sessions that are stepped one statement at a time, and the knowledge of which of them waits for whose lock."""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, TransactionStatus

from faultline.core.errors import DatabaseBusy, FaultlineError
from faultline.store.translation import translated
from faultline_proof.explorer.rules import Deed, Wrong
from faultline_proof.explorer.stops import SAYS, Gate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.pq.abc import PGresult

    from faultline_proof.explorer.programs import Program
    from faultline_proof.explorer.steps import Step

#: How long most statements take at most. One that takes longer is looked at: does it wait for a lock?
_QUICK_SECONDS = 0.003
_PATIENCE_SECONDS = 10.0
#: It waits for a row for a millisecond and then does without: seen waiting for one, it is sure to answer by itself. Not if
#: somebody has locked the whole table.
_NEVER_STUCK = "complete"
#: A deadlock is found at once. Only superusers may ask for that; for others it takes the server's usual second.
_HASTE = "set deadlock_timeout = '5ms'"
#: A program that waits for ever is an error of the explorer, and must not hang it.
_LIMITS = "-c lock_timeout=15s -c statement_timeout=30s -c default_transaction_isolation=read\\ committed"


class Session:
    """A connection that can be left waiting: libpq sends without asking for the answer, and tells whether one has come."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._pgconn = connection.pgconn
        self._cursor = psycopg.ClientCursor(connection)
        self._results: list[PGresult] = []
        self.pid = connection.info.backend_pid
        #: Where it stands still inside a verb until it is let go on.
        self.stop: str | None = None
        connection.add_notice_handler(self._hear)

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.message_primary and notice.message_primary.startswith(SAYS):
            self.stop = notice.message_primary.removeprefix(SAYS)

    @property
    def in_transaction(self) -> bool:
        return self._pgconn.transaction_status != TransactionStatus.IDLE

    def tell(self, settings: str) -> None:
        self._pgconn.exec_(settings.encode())

    def send(self, steps: Sequence[Step]) -> None:
        self._results = []
        queries = [self._cursor.mogrify(step.statement.sql.encode(), step.statement.params) for step in steps]
        self._pgconn.send_query("; ".join(queries).encode())

    def fileno(self) -> int:
        """What `select` looks at."""
        return self._pgconn.socket

    def has_answered(self) -> bool:
        self._pgconn.consume_input()
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                return True
            self._results.append(result)
        return False

    def answers(self, steps: Sequence[Step]) -> list[Any]:
        """For each step its answer or its error; for those after an error nothing."""
        given = [self._read(step, result) for step, result in zip(steps, self._results, strict=False)]
        if self._pgconn.transaction_status == TransactionStatus.INERROR:
            # It has let go of its locks already: when it is rolled back makes no difference.
            self._pgconn.exec_(b"rollback")
        elif self._pgconn.transaction_status == TransactionStatus.INTRANS:
            # A claim within limits lets its session be ended if it then stands still. Here it stands still on purpose.
            self._pgconn.exec_(b"set local idle_in_transaction_session_timeout = 0")
        return given

    def _read(self, step: Step, result: PGresult) -> Any:
        try:
            with translated():
                if result.status == ExecStatus.FATAL_ERROR:
                    raise psycopg.errors.error_from_result(result)
                transformer = Transformer(self._cursor)
                transformer.set_pgresult(result)
                return step.statement.read(transformer.load_rows(0, result.ntuples, tuple))
        except DatabaseBusy as error:
            # Whether it waited for a lock or in a circle, the rules want to know.
            return error.__cause__
        except (FaultlineError, psycopg.Error) as error:
            return error


class Player:
    """One program on one session."""

    def __init__(self, name: str, session: Session, program: Program, gate: Gate | None = None) -> None:
        self.name = name
        self.session = session
        self._gate = gate
        self._program = program
        #: The step that its next turn begins with; None when the program has ended.
        self.next = next(program, None)
        self._turn: list[Step] = []

    @property
    def waits(self) -> bool:
        return bool(self._turn) and not self.session.has_answered() and self.session.stop is None

    @property
    def may_be_stuck(self) -> bool:
        return self._turn[-1].statement.name != _NEVER_STUCK

    @property
    def stop(self) -> str | None:
        """Where it stands still inside a verb. Its next turn goes on from there."""
        return self.session.stop

    @property
    def ready(self) -> bool:
        return self.stop is not None or (self.next is not None and not self._turn)

    @property
    def doing(self) -> Sequence[Step]:
        """The steps of its turn. If it waits, then with the last one."""
        return self._turn

    def start_turn(self) -> None:
        if self._gate is not None and self.session.stop is not None:
            self.session.stop = None
            self._gate.open()
            return
        while self.next is not None:
            self._turn.append(self.next)
            if not self.next.silent:
                break
            self._go_on(None)
        self.session.send(self._turn)

    def end_turn(self) -> list[Deed]:
        turn, self._turn = self._turn, []
        answers = self.session.answers(turn)
        self._go_on(answers[-1])
        if self.next is None and self.session.in_transaction:
            raise AssertionError(f"the program {self.name} ended inside its transaction")
        return [Deed(self.name, step, answer) for step, answer in zip(turn, answers, strict=False)]

    def _go_on(self, answer: Any) -> None:
        try:
            failed = isinstance(answer, Exception)
            self.next = self._program.throw(answer) if failed else self._program.send(answer)
        except StopIteration:
            self.next = None
        except Exception as error:
            if error is not answer:
                raise
            self.next = None


class Sessions:
    """As many sessions as the programs need, used again for every schedule, and one that watches them."""

    def __init__(self, dsn: str, watcher: psycopg.Connection) -> None:
        self._dsn = dsn
        self._watcher = watcher
        self._stack = contextlib.ExitStack()
        self._opened: list[Session] = []
        self._gates: list[Gate] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def may_stop(self) -> bool:
        """Some scene has told its sessions to stop, and the next ones use the same sessions."""
        return bool(self._gates)

    def gate(self, number: int) -> Gate:
        while len(self._gates) <= number:
            self._gates.append(Gate(self._watcher, len(self._gates) + 1))
        return self._gates[number]

    def open(self, number: int) -> Sequence[Session]:
        while len(self._opened) < number:
            connection = psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None, options=_LIMITS)
            self._stack.callback(connection.close)
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                connection.execute(_HASTE)
            self._opened.append(Session(connection))
        return self._opened[:number]

    def play_turn(self, player: Player, players: Sequence[Player]) -> dict[str, list[str]]:
        """Let one program take its next step, until everybody has answered or surely waits. Tells who waits for whom."""
        player.start_turn()
        select.select([player.session], [], [], _QUICK_SECONDS)
        patience = _QUICK_SECONDS
        while waiting := [one for one in players if one.waits]:
            blockers = self._blockers(waiting)
            locked_out = self._locked_out(waiting)
            if all(
                (one.may_be_stuck or one.session.pid in locked_out) and _is_stuck(one.session.pid, blockers, players)
                for one in waiting
            ):
                names = {one.session.pid: one.name for one in players}
                return {one.name: [names[pid] for pid in blockers[one.session.pid]] for one in waiting}
            if patience > _PATIENCE_SECONDS:
                raise Wrong(f"{waiting[0].name} has neither answered nor waits for a lock of the others")
            select.select([one.session for one in waiting], [], [], patience)
            patience *= 1.5
        return {}

    def _blockers(self, waiting: Sequence[Player]) -> dict[int, list[int]]:
        query = "select pid, pg_blocking_pids(pid) from unnest(%s::integer[]) as asked (pid)"
        return dict(self._watcher.execute(query, ([one.session.pid for one in waiting],)).fetchall())

    def _locked_out(self, waiting: Sequence[Player]) -> set[int]:
        """Those who wait for a whole table."""
        query = "select pid from pg_locks where not granted and locktype = 'relation' and pid = any (%s)"
        return {pid for (pid,) in self._watcher.execute(query, ([one.session.pid for one in waiting],)).fetchall()}


def _is_stuck(pid: int, blockers: dict[int, list[int]], players: Sequence[Player], behind: tuple[int, ...] = ()) -> bool:
    """Whether this session waits, directly or behind others, for sessions that do nothing before their next turn.

    Whoever waits for one that is still at work may go on in a moment; from a circle the server frees them.
    """
    idle = {one.session.pid for one in players} - blockers.keys()

    def is_stuck_too(other: int) -> bool:
        return other in blockers and other not in behind and _is_stuck(other, blockers, players, (*behind, pid))

    return bool(blockers[pid]) and all(other in idle or is_stuck_too(other) for other in blockers[pid])

"""Sends the signals that flows of a soak wait for: each in order, and again until it is acknowledged."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import psycopg

from faultline.app.application import Faultline
from faultline.core.errors import FaultlineError, IllegalTransition, JobNotFound
from faultline_proof.reads import audit
from faultline_proof.soak import flows

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.tape import Recording

_PAUSE_SECONDS = 0.2


class Signals(threading.Thread):
    """Some come before their job waits for them, some while it does, and some while nobody is there to run it."""

    def __init__(self, dsn: str, recording: Recording) -> None:
        super().__init__(name="signals", daemon=True)
        self._dsn = dsn
        self._recording = recording
        self._stopping = threading.Event()
        #: How many each job has got.
        self._sent: defaultdict[UUID, int] = defaultdict(int)
        #: What ended it before it was told to stop.
        self.error: Exception | None = None

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        try:
            with Faultline(self._dsn, host=self._recording.host()) as app:
                while not self._stopping.wait(_PAUSE_SECONDS):
                    self._round(app)
        except Exception as error:  # noqa: BLE001 - told to whoever looks at it
            self.error = error

    def _round(self, app: Faultline) -> None:
        try:
            for job_id in app.database.run(audit.open_of(sorted(flows.SIGNALLED))):
                while self._sent[job_id] < flows.SIGNALS and not self._stopping.is_set():
                    self._send(app, job_id)
        except (FaultlineError, psycopg.Error):
            pass  # the moment's: it is asked and sent again

    def _send(self, app: Faultline, job_id: UUID) -> None:
        number = self._sent[job_id]
        try:
            app.signal(job_id, flows.SIGNAL, number, key=f"{flows.SIGNAL} {number}")
        except (IllegalTransition, JobNotFound):
            number = flows.SIGNALS  # it has ended
        self._sent[job_id] = number + 1

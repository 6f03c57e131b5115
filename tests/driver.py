"""What tests drive the protocol with: the verbs on one session, time that can be moved, sessions stepped one by one."""

from __future__ import annotations

from faultline_proof.probes.probe import reasons
from faultline_proof.sessions import Clock, Driver, Session, Sessions

__all__ = ["Clock", "Driver", "Session", "Sessions", "reasons"]

"""Test your own program with what Faultline is tested with. Nothing here replaces PostgreSQL or the worker."""

from faultline.core.faults import POINTS, Faults, WireCut
from faultline.core.host import Host
from faultline.store.testing import FrozenTime
from faultline.testing.databases import frozen_time, scratch_database
from faultline.testing.faults import CrashAt, CutAt
from faultline.testing.jobs import assert_enqueued, enqueued
from faultline.testing.running import Drained, adrain, drain, inline

__all__ = [
    "POINTS",
    "CrashAt",
    "CutAt",
    "Drained",
    "Faults",
    "FrozenTime",
    "Host",
    "WireCut",
    "adrain",
    "assert_enqueued",
    "drain",
    "enqueued",
    "frozen_time",
    "inline",
    "scratch_database",
]

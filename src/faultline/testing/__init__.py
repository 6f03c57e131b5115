"""Test your own program with the tools that test Faultline: frozen time, jobs run in-process, and crashes at every point.

    from faultline.testing import assert_enqueued, crash_everywhere, drain, frozen_time
    from shop import app, charge, orders_paid, remind        # FAULTLINE_DSN names a test database

    def test_an_order_is_charged_and_its_customer_reminded_a_day_later():
        with frozen_time(app) as time:
            charge.enqueue(42)
            assert drain(app).succeeded == 1                 # a real worker, in this process, until nothing is due
            assert_enqueued(app, remind, args={"order_id": 42}, count=1)
            time.advance(24 * 3600)
            assert drain(app).succeeded == 1

    def test_a_charge_survives_a_crash_anywhere():
        crash_everywhere(app, charge.bind(42), effects=orders_paid).raise_if_broken()

Nothing here replaces PostgreSQL or the worker: your tests run with the real ones. A failed check raises `AssertionError`
with what was found; a wrong call raises `ConfigError` with what to do instead.
"""

from faultline.core.faults import POINTS, Faults, WireCut
from faultline.core.host import Host, Pulse
from faultline.store.testing import FrozenTime
from faultline.testing.crashes import crash_everywhere
from faultline.testing.databases import frozen_time, on_database, scratch_database
from faultline.testing.faults import CrashAt, CutAt
from faultline.testing.fixture import JobsUnderTest
from faultline.testing.jobs import assert_enqueued, enqueued
from faultline.testing.report import Crash, Report
from faultline.testing.running import Drained, adrain, drain, inline

__all__ = [
    "POINTS",
    "Crash",
    "CrashAt",
    "CutAt",
    "Drained",
    "Faults",
    "FrozenTime",
    "Host",
    "JobsUnderTest",
    "Pulse",
    "Report",
    "WireCut",
    "adrain",
    "assert_enqueued",
    "crash_everywhere",
    "drain",
    "enqueued",
    "frozen_time",
    "inline",
    "on_database",
    "scratch_database",
]

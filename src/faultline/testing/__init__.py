"""Test your own program with what Faultline is tested with. Nothing here replaces PostgreSQL or the worker."""

from faultline.store.testing import FrozenTime
from faultline.testing.databases import frozen_time, scratch_database
from faultline.testing.running import Drained, adrain, drain, inline

__all__ = [
    "Drained",
    "FrozenTime",
    "adrain",
    "drain",
    "frozen_time",
    "inline",
    "scratch_database",
]

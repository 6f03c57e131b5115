"""Test your own program with what Faultline is tested with. Nothing here replaces PostgreSQL or the worker."""

from faultline.store.testing import FrozenTime
from faultline.testing.databases import frozen_time, scratch_database

__all__ = [
    "FrozenTime",
    "frozen_time",
    "scratch_database",
]

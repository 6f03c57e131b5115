"""The file that starts the keeper's process. The promise: it imports only the keeper's own three modules.

`python -I -S run_keeper.py TASK` has neither the caller's import path nor its site-packages: they are slow to read and may
be broken. So it cannot find `faultline` by name. This file creates the two packages empty, with only their folders.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


def _empty_package(name: str, folder: Path) -> None:
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


if __name__ == "__main__":
    _empty_package("faultline", HERE.parent)
    _empty_package("faultline.embedded", HERE)
    sys.exit(import_module("faultline.embedded.keeper").main(sys.argv[1]))

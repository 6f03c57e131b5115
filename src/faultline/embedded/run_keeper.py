"""The file the keeper's process is started with. The promise: nothing is imported but the keeper's own three modules.

`python -I -S run_keeper.py TASK` has neither the caller's import path nor its site-packages: they are slow to read and
may be broken. So it cannot find `faultline` by its name. The two packages are put into place empty, only with the folder
their modules lie in.
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

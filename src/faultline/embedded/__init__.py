"""A private PostgreSQL in a folder. The promise: it runs while a program uses it, survives kill -9, and leaves nothing.

    with embedded.join(Path("queue")) as server:
        connect(server.dsn)

`binaries` finds PostgreSQL, `account` whom to run it as, `copies` lends binaries to that user, `place` decides where
the files lie, `cluster` makes the data; `keeper` is the process that runs the server, `server` how programs share it.
The locks all of it rests on are explained in `locks`.
"""

from faultline.embedded.binaries import Binaries, find_binaries
from faultline.embedded.place import DEFAULT_FOLDER, folder_of, is_embedded
from faultline.embedded.server import Server, Status, destroy, join, start, status, stop

__all__ = [
    "DEFAULT_FOLDER",
    "Binaries",
    "Server",
    "Status",
    "destroy",
    "find_binaries",
    "folder_of",
    "is_embedded",
    "join",
    "start",
    "status",
    "stop",
]

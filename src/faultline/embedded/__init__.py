"""A private PostgreSQL in a folder. The promise: it runs while a program uses it, survives kill -9, and leaves nothing.

    with embedded.join(Path("queue")) as server:
        connect(server.dsn)

`binaries` finds PostgreSQL, `account` the user to run it as, `copies` copies binaries for that user, `files` decides where
the files are, `cluster` makes the data, `keeper` is the process that runs the server, and `server` lets programs share it.
`locks` explains the locks that all of them use.
"""

from faultline.embedded.binaries import Binaries, find_binaries
from faultline.embedded.files import DEFAULT_FOLDER, folder_of, is_embedded
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

"""A private PostgreSQL server for the demo, for development and for tests.

Forebay starts a server only on request: by ``forebay demo``, ``forebay dev`` and the address
``embedded``. Everything else needs the address of a database.

There is one server for each user, and on it one database for each project: ``embedded`` is the
database of the project that the current folder belongs to.

Clients reach the server through a unix socket in a folder that only its owner may enter. The server
listens on no network address, and belongs to the user who started it. PostgreSQL refuses to run as
root; started by root, it runs as the user ``nobody``. Forebay adds no user, and changes no
permission of an existing folder.

>>> from forebay.embedded import start_or_find
>>> server = start_or_find()            # a second call finds the running server
>>> server.dsn()                        # doctest: +SKIP
'postgresql://postgres@/postgres?host=%2Fhome%2Fme%2F.cache%2Fforebay%2Fpg18&port=5432'
>>> server.stop()                       # doctest: +SKIP
"""

from forebay.embedded._binaries import Binaries, find_bin_dir
from forebay.embedded._project import Project, sessions_of
from forebay.embedded._server import (
    EmbeddedServer,
    default_server,
    start_or_find,
    temporary_server,
)

__all__ = [
    "Binaries",
    "EmbeddedServer",
    "Project",
    "default_server",
    "find_bin_dir",
    "sessions_of",
    "start_or_find",
    "temporary_server",
]

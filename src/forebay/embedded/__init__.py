"""A private PostgreSQL server for the demo, for development and for tests.

Nothing in Forebay starts a server unless it is asked to: ``forebay demo``, ``forebay dev`` and the
address ``embedded`` ask, everything else wants the address of a database.

The server is reached through a unix socket in a folder that only its owner may enter, listens on
no network address, and belongs to the user who started it. Root, which PostgreSQL refuses, lends
it to the user ``nobody``. No user is added, and no permission of a folder changed that was there
before.

>>> from forebay.embedded import start_or_find
>>> server = start_or_find()            # the second caller finds what the first one started
>>> server.dsn()                        # doctest: +SKIP
'postgresql://postgres@/postgres?host=%2Fhome%2Fme%2F.cache%2Fforebay%2Fpg18&port=5432'
>>> server.stop()                       # doctest: +SKIP
"""

from forebay.embedded._binaries import Binaries, find_bin_dir
from forebay.embedded._server import (
    EmbeddedServer,
    default_server,
    start_or_find,
    temporary_server,
)

__all__ = [
    "Binaries",
    "EmbeddedServer",
    "default_server",
    "find_bin_dir",
    "start_or_find",
    "temporary_server",
]

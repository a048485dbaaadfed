"""The application of worker processes that reconcile: a table, and a search in a file.

Environment: MIRROR_INDEX, the file; MIRROR_STOP, if it is there when a pass reads the source the
first time, it says so and hangs.
"""

import os
import time
from pathlib import Path

import forebay
from forebay.mirror import Document, SQLiteTarget

app = forebay.App()


class Items:
    """A thousand items; whoever reads them while the file STOP exists stays there."""

    def read(self, ids):
        stop = Path(os.environ["MIRROR_INDEX"] + ".stop")
        if stop.exists():
            stop.with_suffix(".reached").touch()
            while True:
                time.sleep(0.1)
        return [Document(each, 1, {"text": "mill"}) for each in ids]

    def scan(self, after, limit):
        first = 1 if after is None else after + 1
        return [(each, 1) for each in range(first, min(first + limit, 1001))]


pages = forebay.Mirror(
    app,
    "pages",
    source=Items(),
    target=SQLiteTarget(os.environ["MIRROR_INDEX"]),
    grace=0,
    interval=0.05,
)

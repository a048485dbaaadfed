"""Ask a worker process for its health, as an orchestrator does."""

import http.client
import json
import re
from typing import Any, NamedTuple

from tests.support.worker_process import WorkerProcess

#: The setting of a worker that answers probes at a free port.
ANYWHERE = "127.0.0.1:0"


class Answer(NamedTuple):
    """The answer to one probe; status 0: nobody answered."""

    status: int
    body: dict[str, Any]

    @property
    def reasons(self) -> list[str]:
        return self.body.get("reasons", [])


def address_of(worker: WorkerProcess) -> tuple[str, int]:
    """Return where a worker listens; wait until it does."""
    worker.wait_for_log("probes /live and /ready at ")
    found = re.search(r"probes /live and /ready at http://([\d.]+):(\d+)", worker.log)
    assert found, worker.log
    return found[1], int(found[2])


def probe(worker: WorkerProcess, path: str, *, seconds: float = 5.0) -> Answer:
    """Make one probe."""
    host, port = address_of(worker)
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return Answer(answer.status, json.loads(answer.read()))
    except OSError:
        return Answer(0, {})
    finally:
        connection.close()


def is_ready(worker: WorkerProcess) -> bool:
    """Whether a worker says that it is ready."""
    return probe(worker, "/ready").status == 200

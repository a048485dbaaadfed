"""The first process of a container: it waits for processes that lost their parent.

The kernel makes process 1 the parent of such a process. A Python program does not wait for
processes that it did not start: as process 1 it would keep the dead ones until none can be started.
"""

from __future__ import annotations

import os
import signal
from typing import Final

#: The signals that process 1 passes on.
_SIGNALS: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def leave_first_place() -> None:
    """Continue in a child if this process has number 1; it ends as the child does.

    The process with number 1 passes signals on and waits for all others. Call it before threads
    begin and connections are open.
    """
    if os.getpid() != 1:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return

    def pass_on(number: int, _frame: object) -> None:
        # A terminal sends these to both.
        if number not in (signal.SIGINT, signal.SIGQUIT) or not os.isatty(0):
            os.kill(child, number)

    for number in _SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)

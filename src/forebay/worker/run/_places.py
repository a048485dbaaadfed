"""Where calls run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay._dataclass import dataclass

if TYPE_CHECKING:
    from forebay.arguments.kinds import Kind
    from forebay.worker.ground.threads import Threads
    from forebay.worker.run._transactions import HandlerTransactions
    from forebay.worker.run._verbs import Flows
    from forebay.worker.run.children import Children


@dataclass(slots=True, frozen=True)
class Places:
    """The places for calls, beside the event loop.

    Attributes:
        threads: for plain functions.
        transactions: for handlers in transactions.
        processes: for handlers that need a child process; None in a child process.
        all_in_processes: whether all handlers run in child processes.
        flows: makes the steps of handlers.
    """

    threads: Threads
    transactions: HandlerTransactions
    processes: Children | None
    all_in_processes: bool
    flows: Flows

    def runs_in_child(self, kind: Kind) -> bool:
        """Whether the calls of a kind run in child processes of this one."""
        return self.processes is not None and (self.all_in_processes or kind.in_process)

"""A verb of a flow under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator


class Turn:
    """A verb under way: what it asks for, the reply or error that it gets, and its result."""

    def __init__(self, verb: Generator[Any, Any, Any]) -> None:
        self._verb = verb
        self.asked: Any = None
        self.reply: Any = None
        self.error: BaseException | None = None
        self.result: Any = None

    def proceeds(self) -> bool:
        """Give the verb the answer; return whether it asks again, and has no result yet."""
        reply, error = self.reply, self.error
        self.reply = self.error = None
        try:
            self.asked = self._verb.send(reply) if error is None else self._verb.throw(error)
        except StopIteration as end:
            self.result = end.value
            return False
        return True

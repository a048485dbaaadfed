"""Runs something inside of generators that each have one ``yield``: the middlewares around an
enqueue or an attempt.

The frames of these functions are not part of the tracebacks that people see. A middleware that
passes an exception on leaves no frame in its traceback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from forebay.policy.error_text import calls_handlers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from types import TracebackType

T = TypeVar("T")

#: A method of a middleware.
Around: TypeAlias = "Callable[[Any], Iterator[None] | AsyncIterator[None]]"


@calls_handlers
def run_within(around: Sequence[Around], subject: Any, call: Callable[[], T]) -> T:
    """Call a function inside of generators, the first one outermost; return its result.

    Args:
        around: generator functions.
        subject: their argument.
        call: the function.

    Raises:
        BaseException: what the function raised, or a generator instead of it. A generator cannot
            hide an exception.

    >>> def quoted(names):
    ...     names.append("<")
    ...     yield
    ...     names.append(">")
    >>> names = []
    >>> run_within([quoted, quoted], names, lambda: names.append("call"))
    >>> "".join(names)
    '<<call>>'
    """
    state = _State()
    entered: list[Any] = []
    try:
        for each in around:
            generator: Any = each(subject)
            if next(generator, _ENDED) is _ENDED:
                raise _wrong(each, "ended before its yield")
            entered.append(generator)
        result = call()
    except BaseException as error:
        state.take(error)
    for generator in reversed(entered):
        try:
            if state.error is None:
                next(generator)
            else:
                generator.throw(state.error)
            raise _wrong(generator, "has a second yield")
        except StopIteration:
            state.restore()
        except BaseException as error:
            state.take(error)
    if state.error is not None:
        raise state.error
    return result


@calls_handlers
async def run_within_async(
    around: Sequence[Around], subject: Any, call: Callable[[], Awaitable[T]]
) -> T:
    """Do as ``run_within``; the generators may be asynchronous."""
    state = _State()
    entered: list[Any] = []
    try:
        for each in around:
            generator: Any = each(subject)
            if hasattr(generator, "__anext__"):
                began = await anext(generator, _ENDED)
            else:
                began = next(generator, _ENDED)
            if began is _ENDED:
                raise _wrong(each, "ended before its yield")
            entered.append(generator)
        result = await call()
    except GeneratorExit:
        raise  # This coroutine is being closed, and can wait for nothing.
    except BaseException as error:
        state.take(error)
    for generator in reversed(entered):
        is_async = hasattr(generator, "__anext__")
        try:
            if state.error is None:
                _ = await anext(generator) if is_async else next(generator)
            else:
                _ = (
                    await generator.athrow(state.error)
                    if is_async
                    else generator.throw(state.error)
                )
            raise _wrong(generator, "has a second yield")
        except (StopIteration, StopAsyncIteration):
            state.restore()
        except GeneratorExit:
            raise
        except BaseException as error:
            state.take(error)
    if state.error is not None:
        raise state.error
    return result


_ENDED = object()


class _State:
    """The exception that is on its way out."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._trace: TracebackType | None = None

    def restore(self) -> None:
        """Take the frames of a generator out of the traceback again."""
        if self.error is not None:
            self.error.__traceback__ = self._trace

    def take(self, raised: BaseException) -> None:
        """Take an exception over from the function or a generator."""
        error = self.error
        if raised is error:
            self.restore()
        elif isinstance(error, StopIteration | StopAsyncIteration) and raised.__cause__ is error:
            pass  # A generator cannot raise these: Python replaced it.
        else:
            self.error, self._trace = raised, raised.__traceback__


def _wrong(middleware: Any, problem: str) -> RuntimeError:
    name = getattr(middleware, "__qualname__", repr(middleware))
    return RuntimeError(f"middleware {name} {problem}; it needs exactly one")

"""The types of what ``job`` and ``batch_job`` return: decorators that keep parameter types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Protocol, TypeVar, overload

from msgspec import Raw

from forebay.app._handler import Handler, P, Q
from forebay.model import Job
from forebay.model.context import Context, TransactionContext

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
X = TypeVar("X", bound=Context)


class JobDecorator(Protocol):
    """What ``app.job(...)`` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[X, Q], R], /
    ) -> Handler[Concatenate[X, Q], Q, R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[TransactionContext[C], Q], R], /
    ) -> Handler[Concatenate[TransactionContext[C], Q], Q, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, P, R]: ...


class BatchDecorator(Protocol):
    """What ``app.batch_job(...)`` returns.

    If the items are declared as ``Job`` or ``msgspec.Raw``, ``enqueue`` accepts any arguments by
    name.
    """

    @overload
    def __call__(self, function: Callable[[list[Job]], R], /) -> Handler[[list[Job]], ..., R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a handler with any context has items of one type
        self, function: Callable[[X, list[Job]], R], /
    ) -> Handler[[X, list[Job]], ..., R]: ...

    @overload
    def __call__(
        self, function: Callable[[TransactionContext[C], list[Job]], R], /
    ) -> Handler[[TransactionContext[C], list[Job]], ..., R]: ...

    @overload
    def __call__(self, function: Callable[[list[Raw]], R], /) -> Handler[[list[Raw]], ..., R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # as above
        self, function: Callable[[X, list[Raw]], R], /
    ) -> Handler[[X, list[Raw]], ..., R]: ...

    @overload
    def __call__(
        self, function: Callable[[TransactionContext[C], list[Raw]], R], /
    ) -> Handler[[TransactionContext[C], list[Raw]], ..., R]: ...

    @overload
    def __call__(self, function: Callable[[list[T]], R], /) -> Handler[[list[T]], [T], R]: ...

    @overload
    def __call__(self, function: Callable[[X, list[T]], R], /) -> Handler[[X, list[T]], [T], R]: ...

    @overload
    def __call__(
        self, function: Callable[[TransactionContext[C], list[T]], R], /
    ) -> Handler[[TransactionContext[C], list[T]], [T], R]: ...

"""Contexts whose steps have types: what ``ctx`` is declared as in a handler with steps.

At run time both are ``Context``; a type checker knows what their steps give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from forebay.model.context import Context

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterable,
        AsyncIterator,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from datetime import datetime, timedelta

    from forebay.model.context import JobCall, RetryRule

    T = TypeVar("T")
    ItemT = TypeVar("ItemT")
    Key = str | int | None
    Retry = RetryRule | Mapping[str, Any] | None
    Time = float | timedelta | None

    class AsyncContext(Context):
        """The context of a coroutine handler: its steps are awaited."""

        @overload
        def step(
            self, name: str, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any,
            key: Key = ..., retry: Retry = ..., also: Sequence[str] = ..., **named: Any,
        ) -> Coroutine[Any, Any, T]: ...  # fmt: skip
        @overload
        def step(
            self, name: str, function: Callable[..., T], /, *args: Any,
            key: Key = ..., retry: Retry = ..., also: Sequence[str] = ..., **named: Any,
        ) -> Coroutine[Any, Any, T]: ...  # fmt: skip
        def step(self, name: str, function: Any, /, *args: Any, **named: Any) -> Any: ...

        @overload
        def once(
            self, name: str, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any,
            key: Key = ..., retry: Retry = ..., also: Sequence[str] = ..., **named: Any,
        ) -> Coroutine[Any, Any, T]: ...  # fmt: skip
        @overload
        def once(
            self, name: str, function: Callable[..., T], /, *args: Any,
            key: Key = ..., retry: Retry = ..., also: Sequence[str] = ..., **named: Any,
        ) -> Coroutine[Any, Any, T]: ...  # fmt: skip
        def once(self, name: str, function: Any, /, *args: Any, **named: Any) -> Any: ...

        def sleep(
            self, name: str, delay: Time = ..., *, until: datetime | None = ..., key: Key = ...
        ) -> Coroutine[Any, Any, None]: ...

        @overload
        def wait(
            self, name: str, *, as_type: type[T],
            key: Key = ..., timeout: Time = ..., step_key: Key = ...,
        ) -> Coroutine[Any, Any, T]: ...  # fmt: skip
        @overload
        def wait(
            self, name: str, *, as_type: Any = ...,
            key: Key = ..., timeout: Time = ..., step_key: Key = ...,
        ) -> Coroutine[Any, Any, Any]: ...  # fmt: skip
        def wait(self, name: str, **options: Any) -> Any: ...

        def gather(
            self, name: str, calls: Iterable[JobCall], *,
            on_dead: Literal["raise", "collect"] = ..., key: Key = ...,
        ) -> Coroutine[Any, Any, list[Any]]: ...  # fmt: skip

        def each(
            self, name: str, items: Iterable[ItemT] | AsyncIterable[ItemT], *,
            key: Callable[[ItemT], str | int],
        ) -> AsyncIterator[ItemT]: ...  # fmt: skip

        def done(self, name: str, *, key: Key = ...) -> Coroutine[Any, Any, bool]: ...

    class PlainContext(Context):
        """The context of a plain handler: its steps give their results directly."""

        def step(
            self, name: str, function: Callable[..., T], /, *args: Any,
            key: Key = ..., retry: Retry = ..., also: Sequence[str] = ..., **named: Any,
        ) -> T: ...  # fmt: skip

        def once(
            self, name: str, function: Callable[..., T], /, *args: Any,
            key: Key = ..., retry: Retry = ..., also: Sequence[str] = ..., **named: Any,
        ) -> T: ...  # fmt: skip

        def sleep(
            self, name: str, delay: Time = ..., *, until: datetime | None = ..., key: Key = ...
        ) -> None: ...

        @overload
        def wait(
            self, name: str, *, as_type: type[T],
            key: Key = ..., timeout: Time = ..., step_key: Key = ...,
        ) -> T: ...  # fmt: skip
        @overload
        def wait(
            self, name: str, *, as_type: Any = ...,
            key: Key = ..., timeout: Time = ..., step_key: Key = ...,
        ) -> Any: ...  # fmt: skip
        def wait(self, name: str, **options: Any) -> Any: ...

        def gather(
            self, name: str, calls: Iterable[JobCall], *,
            on_dead: Literal["raise", "collect"] = ..., key: Key = ...,
        ) -> list[Any]: ...  # fmt: skip

        def each(
            self, name: str, items: Iterable[ItemT] | AsyncIterable[ItemT], *,
            key: Callable[[ItemT], str | int],
        ) -> Iterator[ItemT]: ...  # fmt: skip

        def done(self, name: str, *, key: Key = ...) -> bool: ...

else:
    AsyncContext = PlainContext = Context

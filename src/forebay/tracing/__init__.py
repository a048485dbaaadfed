"""Spans of jobs with the API of OpenTelemetry: ``App(middleware=forebay.tracing.middleware())``.

This module does not import OpenTelemetry. ``Tracing`` does, when an object is made.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.model.middleware import Middleware
    from forebay.tracing._tracing import Tracing

__all__ = ["Tracing", "middleware"]


def middleware() -> Sequence[Middleware]:
    """Return the middleware that creates spans.

    The result is empty if the application has set no tracer provider.

    Call it after the provider was set. Without OpenTelemetry, or without a provider, nothing is
    imported and nothing runs.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider":
        return ()
    from forebay.tracing._tracing import Tracing  # noqa: PLC0415 - it imports OpenTelemetry

    return (Tracing(),)


def __getattr__(name: str) -> Any:
    """Import ``Tracing`` on first use."""
    if name == "Tracing":
        from forebay.tracing._tracing import Tracing  # noqa: PLC0415 - it imports OpenTelemetry

        return Tracing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

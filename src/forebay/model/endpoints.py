"""Endpoints: destinations that are rows of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol, TypedDict

from forebay._dataclass import dataclass
from forebay.model.options import MessageOptions, MessagesOptions

Breaker = Literal["closed", "open", "half-open"]

#: The queue of deliveries. The limit key of a delivery is the name of its endpoint.
DELIVERIES: Final = "forebay.deliver"


class Policy(Protocol):
    """A ``RetryPolicy``, or what else has the JSON form of one."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        raise NotImplementedError


class EndpointOptions(TypedDict, total=False):
    """The keywords of ``create_endpoint`` and ``alter_endpoint``.

    Keys:
        retry: the name of a preset, ``"standard"`` or ``"ulak"``; at most 100 delays in seconds, 0
            to 30 days each, with one try more than delays; or a policy: a ``RetryPolicy`` or its
            JSON form. This, ``concurrency``,
            ``breaker_threshold`` and ``breaker_cooldown`` are those of the database if they are not
            given, or removed by None: its settings ``endpoint_retry``, ``endpoint_concurrency``,
            ``breaker_failures`` and ``breaker_cooldown_seconds``, built in ``"standard"``, 50, 10
            and 30.
        rate: deliveries started per second, also below 1; None for no limit.
        burst: deliveries started at once after an idle time; None for those of one second.
        concurrency: deliveries that run at once, over all deliverers.
        breaker_threshold: failures in a row that open the breaker, 1 to 1000.
        breaker_cooldown: seconds between two probes of an open breaker, 5 to 3600.
        disable_after: seconds or timedelta, 12 hours to 365 days: an endpoint without a success for
            that long is disabled when a delivery fails; None for never.
        max_waiting: deliveries that may wait for this endpoint; None or 0 for no bound. Beyond it
            ``send`` is refused. Default: 1,000,000.
        when_full: what becomes of events beyond it: ``"refuse"``, ``publish`` is refused, or
            ``"drop"``, they are dropped for this endpoint. Default: ``"refuse"``.
        max_age: seconds or timedelta, 1 second to 10 years, after which a delivery expires; None:
            that of its event.
        keeps_response: whether the answer is kept as the result of the delivery. Default: False.
        disable_on_gone: whether an answer that says that the endpoint wants no messages any more
            (410) disables it; False: that message becomes a dead letter, and no more. Default:
            True.
    """

    retry: str | Sequence[float] | Mapping[str, Any] | Policy | None
    rate: float | None
    burst: int | None
    concurrency: int | None
    breaker_threshold: int | None
    breaker_cooldown: int | None
    disable_after: float | timedelta | None
    max_waiting: int | None
    max_age: float | timedelta | None
    keeps_response: bool
    disable_on_gone: bool
    when_full: Literal["refuse", "drop"]


class RequestOptions(TypedDict, total=False):
    """What a message says about its own request.

    Keys:
        url_suffix: a path below the address of the endpoint, such as ``"/orders/7"``, if its
            setting ``url_suffixes`` is true: at most 500 letters, digits and ``- . _ ~ : , = +``
            between single slashes. None: none.
        timeout: seconds or timedelta for the request, from 0.1 to the ``timeout_max`` of the
            endpoint. None: its ``timeout``.
    """

    url_suffix: str | None
    timeout: float | timedelta | None


class SendOptions(MessageOptions, RequestOptions, total=False):
    """The keywords of ``send``; see ``JobOptions`` and ``RequestOptions``."""


class ManyOptions(MessagesOptions, RequestOptions, total=False):
    """The keywords of ``send_many``, which all messages share; see ``JobOptions`` and
    ``RequestOptions``.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint, its settings and its health. The settings are those of ``EndpointOptions``.

    Attributes:
        name: its name.
        endpoint_id: its id.
        sink: the type of its sink.
        config: the settings of the sink, with references to secrets.
        retry: the name of a preset, delays in seconds, or the JSON form of a policy.
        rate: deliveries started per second; None for no limit.
        burst: deliveries started at once after an idle time; None for those of one second.
        concurrency: deliveries that run at once.
        breaker_threshold: failures in a row that open the breaker.
        breaker_cooldown: seconds between two probes.
        disable_after: seconds without a success that disable it; None for never.
        max_waiting: deliveries that may wait; None for no bound.
        when_full: what becomes of events beyond it: ``"refuse"`` or ``"drop"``.
        max_age: seconds after which a delivery expires; None: that of its event.
        keeps_response: the answer is kept as the result of the delivery.
        disable_on_gone: an answer 410 disables it.
        created_at: when it was created.
        changed_at: when a setting last changed.
        disabled_at: since when it is disabled; None if it is enabled.
        disabled_why: what was given as the reason; None if it is enabled, or none was given.
        breaker: ``"closed"``, ``"open"``, or ``"half-open"``: a delivery may run as a probe.
        failures: failures in a row.
        opened_at: since when the breaker is open; None if it is closed.
        next_probe_at: from when on a probe may run; None if the breaker is closed.
        failing_since: the first failure since the last success; None for none.
        is_paused: it is enabled, and its deliveries wait for the end of a pause, which it asked for
            or an operator set.
        paused_until: the end of that pause; None without an end.
        waiting: deliveries that wait, without those that wait for a retry and those that no
            deliverer has met yet.
        waiting_since: when the first of them was published or sent; None if none waits.
        is_overfull: events are dropped, since ``max_waiting`` deliveries wait.
        accepted_per_second: accepted messages in the last two minutes, per second.
        failed_per_second: failed tries in the last two minutes, per second.
        rejected_per_second: messages that were refused for good in the last two minutes, per
            second.
        dropped_per_second: events that were dropped for it in the last two minutes, per second.
        p99_seconds: of 99 % of the messages accepted in the last two minutes, the longest time
            since their publication, rounded up to a power of two in milliseconds; None if none was
            accepted.
        last_success_at: when it last accepted a message, to within 5 seconds; None if never.
        last_failure_at: when it last failed, to within 5 seconds; None if never.
        last_error: how; None if never.
        inherits: which of ``retry``, ``concurrency``, ``breaker_threshold`` and
            ``breaker_cooldown`` are those of the database.
    """

    name: str
    endpoint_id: int
    sink: str
    config: dict[str, Any]
    retry: str | list[float] | dict[str, Any]
    rate: float | None
    burst: int | None
    concurrency: int
    breaker_threshold: int
    breaker_cooldown: int
    disable_after: float | None
    max_waiting: int | None
    max_age: float | None
    keeps_response: bool
    disable_on_gone: bool
    when_full: str
    created_at: datetime
    changed_at: datetime
    disabled_at: datetime | None
    disabled_why: str | None
    breaker: Breaker
    failures: int
    opened_at: datetime | None
    next_probe_at: datetime | None
    failing_since: datetime | None
    is_paused: bool
    paused_until: datetime | None
    waiting: int
    waiting_since: datetime | None
    is_overfull: bool
    accepted_per_second: float
    failed_per_second: float
    rejected_per_second: float
    dropped_per_second: float
    p99_seconds: float | None
    last_success_at: datetime | None
    last_failure_at: datetime | None
    last_error: str | None
    inherits: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointProblem:
    """What is wrong with a setting of an endpoint.

    Attributes:
        field: the option, or ``config.`` and the setting of the sink.
        problem: what is wrong with it.
        hint: what to do.
    """

    field: str
    problem: str
    hint: str

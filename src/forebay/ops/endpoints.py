"""Endpoints: create, change and watch them, and send messages to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from forebay.arguments.json_guard import encode_json
from forebay.errors import EndpointNotFound, EnqueueError, InvalidJob, shown
from forebay.model import checks
from forebay.model.endpoints import Endpoint, EndpointProblem
from forebay.model.text import counted
from forebay.model.unique import Unique
from forebay.ops.enqueue import MESSAGE, MESSAGES, message_parameters
from forebay.ops.operation import Operation, ResultRows, boolean, nothing, number, scalar
from forebay.ops.records import rows_as
from forebay.policy.retry import RetryPolicy

#: The settings with the SQL of their values.
_SETTINGS: Final = {
    "sink": "%(sink)s",
    "config": "%(config)s::jsonb",
    "retry": "%(retry)s::jsonb",
    "rate": "%(rate)s::double precision",
    "burst": "%(burst)s::integer",
    "concurrency": "%(concurrency)s::integer",
    "breaker_threshold": "%(breaker_threshold)s::integer",
    "breaker_cooldown": "%(breaker_cooldown)s::integer",
    "disable_after": "make_interval(secs => %(disable_after)s::double precision)",
    "max_waiting": "%(max_waiting)s::bigint",
    "max_age": "make_interval(secs => %(max_age)s::double precision)",
    "keeps_response": "%(keeps_response)s::boolean",
    "disable_on_gone": "%(disable_on_gone)s::boolean",
    "when_full": "%(when_full)s",
}

_DURATIONS: Final = ("disable_after", "max_age")

#: What a message says about its own request.
_OF_REQUESTS: Final = ("url_suffix", "timeout")
_SUFFIX_CHARACTERS_MAX: Final = 500

_SHOWN: Final = (
    "select json_build_object({})::text from forebay.endpoints(%(name)s) e order by e.name".format(
        ", ".join(
            f"'{name}', {value}"
            for name, value in {
                **{
                    name: f"e.{name}"
                    for name in Endpoint.__dataclass_fields__
                    if name not in ("is_paused", "paused_until", *_DURATIONS)
                },
                **{name: f"extract(epoch from e.{name})::double precision" for name in _DURATIONS},
                "is_paused": "e.paused_until is not null",
                "paused_until": "case when isfinite(e.paused_until) then e.paused_until end",
            }.items()
        )
    )
)

_REQUEST: Final = (
    "url_suffix => %(url_suffix)s::text,"
    " timeout => make_interval(secs => %(timeout)s::double precision)"
)

_SEND: Final = f"""\
select forebay.send(
    %(endpoint)s, %(payload)s::jsonb, kind => %(kind)s, {MESSAGE},
    {_REQUEST})"""

_SEND_MANY: Final = f"""\
select forebay.send_many(
    %(endpoint)s, array(select jsonb_array_elements(%(payloads)s::jsonb)), kind => %(kind)s,
    {MESSAGES},
    {_REQUEST})"""

_SEND_EACH: Final = "select forebay.send_many(%(messages)s::jsonb)"


def create_endpoint(
    name: str, sink: str, config: Mapping[str, Any], options: Mapping[str, Any]
) -> Operation[int]:
    """Return the call that creates an endpoint; it returns the id."""
    given = _given({"sink": sink, "config": config, **options})
    named = "".join(f", {field} => {_SETTINGS[field]}" for field in given)
    return Operation(
        f"select forebay.create_endpoint(name => %(name)s{named})",
        number,
        {"name": name, **given},
    )


def validate_endpoint(
    name: str, sink: str, config: Mapping[str, Any], options: Mapping[str, Any]
) -> Operation[list[EndpointProblem]]:
    """Return the call that tells what creating an endpoint would refuse; it writes nothing."""
    given = _given({"sink": sink, "config": config, **options})
    named = "".join(f", {field} => {_SETTINGS[field]}" for field in given)
    return Operation(
        f"select to_jsonb(p)::text from forebay.validate_endpoint(name => %(name)s{named}) p",
        lambda rows: rows_as(EndpointProblem, rows),
        {"name": name, **given},
    )


def allow_hosts(hosts: Iterable[str]) -> Operation[bool]:
    """Return the call that tells which hosts deliverers may call besides public addresses."""
    return Operation(
        "select forebay.allow_hosts(array(select jsonb_array_elements_text(%(hosts)s::jsonb)))",
        boolean,
        {"hosts": encode_json(list(hosts))},
    )


def alter_endpoint(name: str, options: Mapping[str, Any]) -> Operation[bool]:
    """Return the call that changes settings; it returns whether that changed anything.

    Args:
        name: the endpoint.
        options: new values by name; None removes a setting.
    """
    removed = [field for field, value in options.items() if value is None]
    given = _given({field: value for field, value in options.items() if value is not None})
    _check_names(removed)
    named = "".join(f", {field} => {_SETTINGS[field]}" for field in given)
    return Operation(
        (
            f"select forebay.alter_endpoint(name => %(name)s{named}, remove => "
            f"string_to_array(%(remove)s, ','))"
        ),
        boolean,
        {"name": name, **given, "remove": ",".join(removed)},
    )


def drop_endpoint(name: str, *, discard: bool = False) -> Operation[None]:
    """Return the call that drops an endpoint."""
    return Operation(
        "select forebay.drop_endpoint(name => %(name)s, discard => %(discard)s::boolean)",
        nothing,
        {"name": name, "discard": discard},
    )


def enable_endpoint(name: str) -> Operation[bool]:
    """Return the call that enables an endpoint; it returns whether it was disabled."""
    return Operation("select forebay.enable_endpoint(%(name)s)", boolean, {"name": name})


def disable_endpoint(name: str, why: str | None = None) -> Operation[bool]:
    """Return the call that disables an endpoint; it returns whether it was enabled."""
    return Operation(
        "select forebay.disable_endpoint(%(name)s, %(why)s)", boolean, {"name": name, "why": why}
    )


def reset_endpoint(name: str) -> Operation[bool]:
    """Return the call that closes the breaker of an endpoint; it returns whether it was open."""
    return Operation("select forebay.reset_endpoint(%(name)s)", boolean, {"name": name})


def rotate_secret(
    endpoint: str, secret: str, grace: float | timedelta | None = None
) -> Operation[None]:
    """Return the call that gives an endpoint a new secret; None for the default grace."""
    return Operation(
        "select forebay.rotate_secret(%(endpoint)s, %(secret)s,"
        " coalesce(make_interval(secs => %(grace)s::double precision), interval '24 hours'))",
        nothing,
        {
            "endpoint": endpoint,
            "secret": secret,
            "grace": None if grace is None else checks.checked_seconds(grace, "grace"),
        },
    )


def endpoints() -> Operation[list[Endpoint]]:
    """Return the call that lists the endpoints with their health, by name."""
    return Operation(_SHOWN, lambda rows: rows_as(Endpoint, rows), {"name": None})


def endpoint(name: str) -> Operation[Endpoint]:
    """Return the call that reads one endpoint.

    Running it raises ``EndpointNotFound`` if there is none.
    """

    def decode(rows: ResultRows) -> Endpoint:
        if not rows:
            raise EndpointNotFound(name)
        return rows_as(Endpoint, rows)[0]

    return Operation(
        _SHOWN, decode, {"name": checks.checked_text(name, "name", characters_max=100)}
    )


def test_endpoint(name: str) -> Operation[int]:
    """Return the call that sends a test message; it returns the id of the delivery."""
    return Operation("select forebay.test_endpoint(%(name)s)", number, {"name": name})


def send(endpoint: str, payload: Any, kind: str, options: Mapping[str, Any]) -> Operation[int]:
    """Return the call that sends a message to an endpoint; it returns the id of the delivery."""
    return Operation(
        _SEND,
        number,
        {
            "endpoint": endpoint,
            "payload": encode_json(payload),
            "kind": checks.checked_name(kind, "kind"),
            **_message_parameters(options),
        },
    )


def send_many(
    endpoint: str,
    payloads: Iterable[Any],
    kind: str,
    unique: Iterable[Unique] | None,
    options: Mapping[str, Any],
) -> Operation[list[int]]:
    """Return the call that sends messages to an endpoint; it returns the ids of the deliveries."""
    checks.checked_name(kind, "kind")
    texts = [_payload_text(payload, index) for index, payload in enumerate(_items(payloads))]
    parameters = _message_parameters(options)
    if unique is None:
        del parameters["unique_as"]
        given = {"endpoint": endpoint, "kind": kind, "payloads": f"[{','.join(texts)}]"}
        return Operation(_SEND_MANY, _ids, given | parameters)
    keys = list(unique)
    if len(keys) != len(texts):
        raise InvalidJob(
            "unique",
            f"has {counted(len(keys), 'key')} for {counted(len(texts), 'payload')}",
            hint="Give a key for each payload, in their order.",
        )
    common = {name: value for name, value in parameters.items() if value is not None}
    if "headers" in common:
        common["headers"] = msgspec.Raw(common["headers"].encode())
    messages = [
        {
            "endpoint": endpoint,
            "kind": kind,
            "payload": msgspec.Raw(text.encode()),
            "unique_as": _key(key, index),
            **common,
        }
        for index, (text, key) in enumerate(zip(texts, keys, strict=True))
    ]
    return Operation(_SEND_EACH, _ids, {"messages": msgspec.json.encode(messages).decode()})


def _message_parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    suffix, timeout = options.get("url_suffix"), options.get("timeout")
    if suffix is not None:
        checks.checked_text(suffix, "url_suffix", characters_max=_SUFFIX_CHARACTERS_MAX)
    others = {name: value for name, value in options.items() if name not in _OF_REQUESTS}
    return message_parameters(others, "is that of the endpoint") | {
        "url_suffix": suffix,
        "timeout": None if timeout is None else checks.checked_seconds(timeout, "timeout"),
    }


def _items(payloads: Iterable[Any]) -> Iterable[Any]:
    if isinstance(payloads, str | bytes | Mapping) or not isinstance(payloads, Iterable):
        raise InvalidJob(
            "payloads", f"must be an iterable of payloads, not {shown(payloads)}",
            hint="For one message: send().",
        )  # fmt: skip
    return payloads


def _payload_text(payload: Any, index: int) -> str:
    try:
        return encode_json(payload)
    except EnqueueError as error:
        raise error.at_index(index, "message") from None


def _key(key: object, index: int) -> dict[str, Any]:
    if not isinstance(key, Unique):
        raise InvalidJob(
            "unique", f"has {shown(key)} at {index}, which is no uniqueness mode",
            hint='For example unique=[Once("order:42"), ...].',
        )  # fmt: skip
    return key.as_json()


def _ids(rows: ResultRows) -> list[int]:
    return [int(number) for number in scalar(rows)]


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of settings."""
    _check_names(options)
    given = dict(options)
    for name in ("config", "retry"):
        value = given.get(name)
        if isinstance(value, RetryPolicy):
            value = value.as_json()
        # None leaves it to the database.
        if value is not None:
            given[name] = _as_json(value, name)
    for name, sql in _SETTINGS.items():
        if sql.endswith("::integer"):
            checks.integer_or_none(given.get(name), name)
    for name in _DURATIONS:
        if given.get(name) is not None:
            given[name] = checks.checked_seconds(given[name], name)
    return given


def _as_json(value: Any, name: str) -> str:
    """Return a setting as JSON text that PostgreSQL accepts."""
    try:
        return encode_json(dict(value) if isinstance(value, Mapping) else value)
    except InvalidJob as error:
        field = name + (error.field or "args").removeprefix("args")
        raise InvalidJob(field, str(error.problem), hint=error.hint) from None


def _check_names(names: Any) -> None:
    for name in names:
        if name not in _SETTINGS:
            raise InvalidJob(
                f"option {shown(name)}",
                "is unknown",
                hint=f"Known options: {', '.join(_SETTINGS)}.",
            )

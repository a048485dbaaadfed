"""The settings by group, with defaults and bounds.

A setting has the same name everywhere: the attribute here, the key in forebay.toml, the flag and,
as FOREBAY_<NAME>, the environment variable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, field, fields, replace
from typing import Any, Final, TypeAlias, TypeVar

from forebay._dataclass import dataclass
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model import checks

T = TypeVar("T")

POOLERS: Final = ("auto", "session", "transaction")
LISTENS: Final = ("auto", "never")
SCHEDULES: Final = ("on", "off")
WITHOUT_SCHEMA: Final = ("wait", "fail")
STRATEGIES: Final = ("fixed", "linear", "exponential", "polynomial")


#: The built-in length of a lease.
_LEASE_SECONDS: Final = 30.0


def setting(default: T, meaning: str) -> T:
    """Return a dataclass field with its default and its description."""
    value: T = field(default=default, metadata={"meaning": meaning})
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One worker process."""

    queue: str | None = setting(
        None, "queues to serve, with weights: `mail,reports=3`; if not set, all queues of the app"
    )
    concurrency: int = setting(10, "maximum number of concurrent jobs")
    processes: int | None = setting(
        None,
        (
            "run all handlers in this number of child processes, one call in each; replaces "
            "`concurrency`"
        ),
    )
    poll_seconds: float = setting(
        0.05,
        (
            "interval between polls of the one idle worker that polls; up to twenty times longer, "
            "and at most 5 s, while producers notify"
        ),
    )
    lease_seconds: float = setting(
        _LEASE_SECONDS, "a worker without a heartbeat for this time loses its jobs"
    )
    lease_margin_seconds: float = setting(
        5.0,
        "how long before the end of a lease that it cannot renew a worker stops its handlers",
    )
    suspect_seconds: float = setting(
        5.0, "time that a worker with a lost connection has to reconnect"
    )
    heartbeat_seconds: float = setting(
        1.0, "interval between heartbeats; up to three times longer while no job runs"
    )
    grace_seconds: float = setting(
        30.0, "maximum time for running jobs after SIGTERM; then they are released"
    )
    starving_share: float = setting(
        0.1, "share of a queue's slots for its lower priorities while higher ones have work"
    )
    claim_rows_max: int = setting(
        1000, "maximum number of jobs per claim; the largest batch size, if that is more"
    )
    ahead_seconds: float = setting(
        0.1, "how much work may be claimed before slots are free, in seconds"
    )
    soft_timeout_seconds: float | None = setting(
        None, "a handler is requested to stop after this time, unless its kind sets another"
    )
    hard_timeout_seconds: float | None = setting(
        None, "a handler is stopped after this time, unless its kind sets another"
    )
    pooler: str = setting(
        "auto",
        (
            "transaction: a pooler may run each transaction in another server session; "
            "session: no such pooler; auto: detect"
        ),
    )
    listen: str = setting(
        "auto",
        (
            "auto: new jobs wake the worker, except through such a pooler; never: only "
            "polling, with one connection less"
        ),
    )
    connect_timeout_seconds: float = setting(5.0, "maximum time to connect")
    reconnect_seconds_max: float = setting(1.0, "maximum pause between two attempts to connect")
    without_schema: str = setting(
        "wait", "what a starting worker does while the schema is missing or too old: wait, fail"
    )
    app_version: str | None = setting(
        None, "version of your application, shown by `forebay workers list`"
    )
    schedules: str = setting("on", "on: the worker also enqueues the jobs of schedules; off: not")
    health: str | None = setting(
        None, "answer the probes /live and /ready at this HOST:PORT, or at unix:PATH"
    )
    #: The settings above that a file, the environment or a flag has set; no setting itself.
    given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.queue is not None:
            parse_queue_weights(self.queue)
        whole_within("concurrency", self.concurrency, 1, 10_000)
        if self.processes is not None:
            whole_within("processes", self.processes, 1, 1_000)
        within("poll_seconds", self.poll_seconds, 0.001, 60)
        within("lease_seconds", self.lease_seconds, 1, 3600)
        within("lease_margin_seconds", self.lease_margin_seconds, 0.1, 3600)
        within("suspect_seconds", self.suspect_seconds, 0.1, 3600)
        within("heartbeat_seconds", self.heartbeat_seconds, 0.05, 600)
        within("grace_seconds", self.grace_seconds, 0, 86_400)
        within("starving_share", self.starving_share, 0, 0.5)
        whole_within("claim_rows_max", self.claim_rows_max, 1, 10_000)
        one_of("pooler", self.pooler, POOLERS)
        one_of("listen", self.listen, LISTENS)
        one_of("schedules", self.schedules, SCHEDULES)
        one_of("without_schema", self.without_schema, WITHOUT_SCHEMA)
        if self.health is not None:
            listen_address(self.health)
        within("ahead_seconds", self.ahead_seconds, 0, 60)
        within("connect_timeout_seconds", self.connect_timeout_seconds, 0.1, 600)
        within("reconnect_seconds_max", self.reconnect_seconds_max, 0.1, 3600)
        self._check_lease()
        self._check_timeouts()

    def with_lease_seconds(self, seconds: float) -> WorkerSettings:
        """Return these settings with the lease that the database has, unless the process has its
        own.

        Raises:
            ConfigError: the lease is too short for the other settings.
        """
        is_own = "lease_seconds" in self.given or self.lease_seconds != _LEASE_SECONDS
        return self if is_own else replace(self, lease_seconds=seconds)

    @property
    def slots(self) -> int:
        """How many calls run at once: one for each process, else the concurrency."""
        return self.processes or self.concurrency

    def _check_lease(self) -> None:
        heartbeat = self.heartbeat_seconds
        if self.lease_seconds < 3 * heartbeat:
            raise ConfigError(
                "lease_seconds",
                f"is {self.lease_seconds:g}, less than 3 times heartbeat_seconds {heartbeat:g}",
                value=self.lease_seconds,
                hint="A lease must survive one or two lost heartbeats.",
            )
        if self.lease_seconds - self.lease_margin_seconds < 2 * heartbeat:
            raise ConfigError(
                "lease_margin_seconds",
                f"is {self.lease_margin_seconds:g}, which leaves less than 2 heartbeats of "
                f"{heartbeat:g} s before lease_seconds {self.lease_seconds:g}",
                value=self.lease_margin_seconds,
            )
        if self.suspect_seconds < 2 * heartbeat:
            raise ConfigError(
                "suspect_seconds",
                f"is {self.suspect_seconds:g}, less than 2 times heartbeat_seconds {heartbeat:g}",
                value=self.suspect_seconds,
            )
        if self.suspect_seconds > self.lease_seconds:
            raise ConfigError(
                "suspect_seconds",
                f"is {self.suspect_seconds:g}, longer than lease_seconds {self.lease_seconds:g}",
                value=self.suspect_seconds,
            )

    def _check_timeouts(self) -> None:
        for name in ("soft_timeout_seconds", "hard_timeout_seconds"):
            if getattr(self, name) is not None:
                within(name, getattr(self, name), 0.001, 30 * 86_400)
        soft, hard = self.soft_timeout_seconds, self.hard_timeout_seconds
        if soft is not None and hard is not None and soft > hard:
            raise ConfigError(
                "soft_timeout_seconds",
                f"is {soft:g}, longer than hard_timeout_seconds {hard:g}",
                value=soft,
            )

    @property
    def queue_weights(self) -> dict[str, int] | None:
        """The queues to serve with their weights; None for all queues of the app."""
        return None if self.queue is None else parse_queue_weights(self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """Retries of kinds that declare no retry policy."""

    retry_strategy: str = setting("exponential", f"how delays grow: {', '.join(STRATEGIES)}")
    retry_base_seconds: float = setting(5.0, "delay after the first failure")
    retry_cap_seconds: float = setting(3600.0, "maximum delay")
    max_attempts: int = setting(20, "maximum number of attempts; then the job is a dead letter")

    def __post_init__(self) -> None:
        one_of("retry_strategy", self.retry_strategy, STRATEGIES)
        within("retry_base_seconds", self.retry_base_seconds, 0.001, checks.DELAY_SECONDS_MAX)
        within("retry_cap_seconds", self.retry_cap_seconds, 0.001, checks.DELAY_SECONDS_MAX)
        within("max_attempts", self.max_attempts, 1, checks.MAX_ATTEMPTS_MAX)
        if self.retry_cap_seconds < self.retry_base_seconds:
            raise ConfigError(
                "retry_cap_seconds",
                f"is {self.retry_cap_seconds:g}, less than "
                f"retry_base_seconds {self.retry_base_seconds:g}",
                value=self.retry_cap_seconds,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long settled jobs are kept. For the whole database; `forebay migrate` stores them."""

    retention_days: int = setting(30, "settled segments older than this are emptied")
    retention_bytes: int = setting(
        20_000_000_000, "the oldest settled segments beyond this total size are emptied"
    )

    def __post_init__(self) -> None:
        within("retention_days", self.retention_days, 0, 36_500)
        within("retention_bytes", self.retention_bytes, 0, 10**18)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSettings:
    """The size of jobs. For the whole database; `forebay migrate` stores them."""

    args_bytes_max: int = setting(
        checks.ARGS_BYTES_MAX, "maximum size of a job's arguments as JSON, in bytes"
    )
    args_depth_max: int = setting(
        checks.ARGS_DEPTH_MAX, "maximum nesting depth of a job's arguments"
    )
    result_bytes_max: int = setting(
        65_536, "maximum size of a kept result as JSON, in bytes; a larger result is not kept"
    )

    def __post_init__(self) -> None:
        within("result_bytes_max", self.result_bytes_max, 1024, 100 * 1024 * 1024)
        within("args_bytes_max", self.args_bytes_max, 1024, 100 * 1024 * 1024)
        # Beyond 200 the recursion limit of Python decides, in producers and workers.
        # SQL does not check less than 64: arguments too small to be measured can be this deep.
        within("args_depth_max", self.args_depth_max, 64, 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSettings:
    """The partitions of the log. For the whole database; `forebay migrate` stores them."""

    segment_rows: int = setting(1_000_000, "job numbers per segment")
    reserve_rows: int = setting(
        64_000_000,
        "job numbers for which segments are created ahead, in case no worker runs for weeks",
    )

    def __post_init__(self) -> None:
        within("segment_rows", self.segment_rows, 100, 100_000_000)
        within("reserve_rows", self.reserve_rows, 1000, 10**12)
        if self.reserve_rows < 2 * self.segment_rows:
            raise ConfigError(
                "reserve_rows",
                f"is {self.reserve_rows}, less than 2 times segment_rows {self.segment_rows}",
                value=self.reserve_rows,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """What endpoints, which are rows of the database, may make a deliverer do."""

    endpoint_sinks: str = setting("http", "sinks that endpoints may have: `http,kafka`")
    endpoint_hosts: str | None = setting(
        None,
        "hosts that endpoints may call besides public addresses: `10.1.0.0/16,mq.internal:5672`;"
        " sinks other than http call only these",
    )
    endpoint_ports: str = setting(
        "443,8443", "ports that endpoints of the sink http may call at any host: `443,8443`, or any"
    )
    endpoint_schemes: str = setting(
        "https", "how endpoints of the sink http may be called: `https`, or `https,http`"
    )
    endpoint_variables: str | None = setting(
        None,
        "environment variables that endpoints may name as secrets: `SHOP_KEY,HOOK_*`;"
        " each of them may be sent to each endpoint",
    )
    endpoint_folders: str | None = setting(
        None, "folders whose files endpoints may name as secrets: `/run/secrets/hooks`"
    )
    endpoint_settings: str | None = setting(
        None,
        "settings that the process gives the sinks of endpoints, as JSON:"
        ' `{"http": {"ca_file": "/etc/ca.pem"}}`',
    )

    def __post_init__(self) -> None:
        for port in listed(self.endpoint_ports):
            if self.endpoint_ports != "any" and not re.fullmatch("[1-9][0-9]{0,4}", port):
                raise ConfigError(
                    "endpoint_ports", f"has {shown(port)}, which is not a port", value=port
                )
        one_of("endpoint_schemes", self.endpoint_schemes, ("https", "https,http", "http,https"))
        for name in listed(self.endpoint_variables):
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*[*]?", name):
                raise ConfigError(
                    "endpoint_variables",
                    f"has {shown(name)}, which is neither a name nor the beginning of names with *",
                    value=name,
                )
        for folder in listed(self.endpoint_folders):
            if not folder.startswith("/") or not folder.strip("/"):
                raise ConfigError(
                    "endpoint_folders", f"has {shown(folder)}, not the path of a folder below /"
                )
        _ = self.sink_settings

    @property
    def sink_settings(self) -> dict[str, dict[str, Any]]:
        """The settings that the process gives, by the type of the sink."""
        try:
            found = json.loads(self.endpoint_settings or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
            raise ConfigError(
                "endpoint_settings",
                "is not a JSON object of objects",
                hint='Write {"http": {"ca_file": "/etc/ca.pem"}}.',
            )
        return found


def listed(text: str | None) -> list[str]:
    """Return the elements of a list with commas.

    >>> listed("a, b"), listed(None)
    (['a', 'b'], [])
    """
    return [part.strip() for part in (text or "").split(",") if part.strip()]


#: Every group, by the name of its attribute in ``Settings``.
GROUPS: Final[dict[str, type[Any]]] = {
    "worker": WorkerSettings,
    "delivery": DeliverySettings,
    "retry": RetrySettings,
    "retention": RetentionSettings,
    "payload": PayloadSettings,
    "segments": SegmentSettings,
}


def declared_settings(group: type[Any]) -> list[Field[Any]]:
    """Return the settings of a group."""
    return [item for item in fields(group) if "meaning" in item.metadata]


#: The groups whose values are stored in the database, the same for every process.
DATABASE_GROUPS: Final = ("retention", "payload", "segments")

_WEIGHT_MAX: Final = 1000


#: Queues as a caller may choose them: their short form, names, or names with weights.
Queues: TypeAlias = str | Iterable[str] | Mapping[str, int]


def parse_queue_weights(queues: Queues) -> dict[str, int]:
    """Return queues and weights from their short form, from names, or from names with weights.

    Raises:
        ConfigError: a name or a weight is invalid, a queue is named twice, or none is.

    >>> parse_queue_weights("mail, reports=3"), parse_queue_weights(["mail", "reports"])
    ({'mail': 1, 'reports': 3}, {'mail': 1, 'reports': 1})
    """
    weights: dict[str, int] = {}
    for queue, weight in _named_weights(queues):
        try:
            name = checks.checked_name(queue, "queue")
        except InvalidJob as error:
            raise _refused_queues(queues, str(error.problem), error.hint) from None
        if name in weights:
            raise _refused_queues(queues, f"names {name} twice: {shown(queues)}")
        if isinstance(weight, bool) or not isinstance(weight, int):
            raise _refused_queues(queues, f"has a weight that is not a number: {shown(weight)}")
        if not 1 <= weight <= _WEIGHT_MAX:
            raise _refused_queues(
                queues, f"has a weight outside 1 to {_WEIGHT_MAX}: {shown(weight)}"
            )
        weights[name] = weight
    if not weights:
        raise _refused_queues(queues, "names no queue")
    return weights


def _named_weights(queues: Any) -> Iterable[tuple[object, object]]:
    """Return names and weights as they were given; of the short form, a number of digits is one."""
    if isinstance(queues, str):
        parts = [part.strip().partition("=") for part in queues.split(",")]
        return [
            (queue, int(weight) if re.fullmatch("[0-9]{1,9}", weight) else weight or 1)
            for queue, _, weight in parts
        ]
    if isinstance(queues, Mapping):
        return queues.items()
    if isinstance(queues, Iterable) and not isinstance(queues, bytes):
        return [(queue, 1) for queue in queues]
    raise _refused_queues(queues, f"is {shown(queues)}, not names of queues")


def _refused_queues(queues: object, problem: str, hint: str | None = None) -> ConfigError:
    if hint is None:
        forms = "mail,reports=3"
        if not isinstance(queues, str):
            forms = f"['mail', 'reports'], {{'mail': 1, 'reports': 3}} or '{forms}'"
        hint = f"Write {forms}. Without it a worker serves all queues of its app."
    return ConfigError("queue", problem, value=queues, hint=hint)


def checked_group(group: object) -> str:
    """Return the name of a consumer group.

    Raises:
        ConfigError: it is not a name.
    """
    try:
        return checks.checked_name(group, "group")
    except InvalidJob as error:
        hint = error.hint or "It is the name of a consumer group, such as 'default'."
        raise ConfigError("group", str(error.problem), value=group, hint=hint) from None


def listen_address(text: str) -> str | tuple[str, int]:
    """Return the path of a unix socket, or the host and port.

    Raises:
        ConfigError: it is neither.

    >>> listen_address("unix:/run/shop/health"), listen_address(":8080"), listen_address("[::1]:80")
    ('/run/shop/health', ('0.0.0.0', 8080), ('::1', 80))
    """
    if text.startswith("unix:/"):
        return text.removeprefix("unix:")
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_host = re.fullmatch(r"\[[0-9A-Fa-f:.]+\]|[\w.-]*", host) is not None
    if not (
        colon
        and is_host
        and port.isascii()
        and port.isdigit()
        and len(port) < 6
        and int(port) < 65_536
    ):
        raise ConfigError(
            "health",
            f"is {shown(text)}, not an address to listen at",
            value=text,
            hint=(
                "Write 127.0.0.1:8080, :8080 for all addresses of the machine, or "
                "unix:/run/shop/health."
            ),
        )
    return bare or "0.0.0.0", int(port)  # noqa: S104  the user asked for all of them


def within(name: str, value: float, least: float, most: float) -> None:
    """Refuse a value that is not a number, a number outside its bounds, and NaN."""
    number: object = value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ConfigError(
            name, f"is {shown(number)}, not a number", value=value,
            hint=f"It is a number within {least:g} to {most:g}.",
        )  # fmt: skip
    if not least <= value <= most:  # nor is NaN
        raise ConfigError(
            name, f"is {shown(number)}, not within {least:g} to {most:g}", value=value
        )


def whole_within(name: str, value: int, least: int, most: int) -> None:
    """Refuse a value that is not an integer within its bounds."""
    within(name, value, least, most)
    number: object = value
    if not isinstance(number, int):
        raise ConfigError(
            name, f"is {value}, not an integer", value=value,
            hint=f"It is an integer within {least} to {most}.",
        )  # fmt: skip


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a text that is not among the choices."""
    if value not in choices:
        raise ConfigError(name, f"is {shown(value)}, not one of {', '.join(choices)}", value=value)

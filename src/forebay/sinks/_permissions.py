"""What rows of the database may make this process do: the door from an endpoint to a sink.

Invariant "rows choose among what the process allows": a role that may write an endpoint chooses
which messages go where, and nothing else. Which sinks, hosts, variables and folders there are to
choose from stands in the settings of the process (``DeliverySettings``). A parameter of a sink
without a rule is refused, so that a new one is refused until its author states why it is harmless.
See docs/design/endpoints.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from forebay.config import DeliverySettings, listed
from forebay.errors import ConfigError, shown
from forebay.model.doors import declaring_door
from forebay.sinks._contract import FromRow, Sink
from forebay.sinks._destination import BlockedAddress, Destinations, parse_endpoint
from forebay.sinks._registry import make_sink, sink_class
from forebay.sinks._secrets import reference_in

#: Schemes of addresses that lead over a network. Others open files, or sockets of this machine.
_SCHEMES: Final = frozenset(
    {
        "amqp", "amqps", "http", "https", "kafka", "kafkas", "mqtt", "mqtts", "nats", "postgres",
        "postgresql", "pyamqp", "redis", "rediss", "tls",
    }
)  # fmt: skip

#: One form of address that all clients read alike, without options, which could name files.
_HOST: Final = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_ADDRESS: Final = re.compile(
    rf"([a-z]+)://(?:[^\s/@?#;,\\\[\]]*@)?({_HOST}(?:,{_HOST})*)(?:/[^\s@?#;,\\]*)?"
)
_NEXT_ADDRESS: Final = re.compile(r",(?=[a-z]+://)")


class NotPermitted(ConfigError):  # noqa: N818 - says what happened
    """A row asks for what the settings of this process do not allow."""


class Permissions:
    """What the settings of endpoints may make this process do.

    Args:
        settings: of the process; None: the defaults, https to public addresses.

    Raises:
        ConfigError: a setting is malformed.
    """

    @declaring_door
    def __init__(self, settings: DeliverySettings | None = None) -> None:
        self._settings = found = settings or DeliverySettings()
        self._sinks = listed(found.endpoint_sinks)
        self._given = found.sink_settings
        self._variables = listed(found.endpoint_variables)
        self._folders = [Path(folder).resolve() for folder in listed(found.endpoint_folders)]
        ports = None if found.endpoint_ports == "any" else map(int, listed(found.endpoint_ports))
        self._has_hosts = bool(found.endpoint_hosts)
        try:
            self._destinations = Destinations(
                allow=listed(found.endpoint_hosts),
                https_only=found.endpoint_schemes == "https",
                ports=ports,
            )
        except ConfigError as error:
            is_ports = "ports" in error.field
            field = "endpoint_ports" if is_ports else "endpoint_hosts"
            raise ConfigError(field, error.problem, hint=error.hint) from None

    @property
    def hosts(self) -> tuple[str, ...]:
        """What ``endpoint_hosts`` lists."""
        return tuple(listed(self._settings.endpoint_hosts))

    def sink(self, name: str, config: Mapping[str, Any]) -> Sink:
        """Return the sink that a row asks for, with what the process gives to sinks of its type.

        Raises:
            NotPermitted: the settings of this process do not allow it; it names the one to change.
            ConfigError: the class of the sink refuses the settings.
        """
        if name not in self._sinks:
            raise refused("endpoint_sinks", f"does not list {shown(name)}")
        check_row(name, config)
        rules = sink_class(name).row_rules
        given = self._given.get(name, {})
        for field, value in config.items():
            if field not in given:  # What the process gives counts, not the value of the row.
                self._check_field(name, field, value, rules[field])
        whole = {**config, **given}
        for field in sink_class(name).row_needs:
            if field not in whole:
                raise refused("endpoint_settings", f"does not give {name}.{field}")
        addresses = [key for key, rule in rules.items() if rule is FromRow.CHECKED_ADDRESS]
        if addresses and sink_class(name).finds_login(whole):
            self._check_login(name, whole)
        if addresses and "destinations" not in whole:
            whole["destinations"] = self._destinations
            for field in addresses:
                if field == "url" or whole.get(field) is not None:
                    self._check_destination(field, whole.get(field))
        return make_sink(name, whole)

    def _check_field(self, name: str, field: str, value: Any, rule: FromRow) -> None:
        self._check_references(f"{name}.{field}", value)
        if rule is FromRow.ADDRESS:
            self._check_hosts(f"{name}.{field}", str(value))
        elif rule is FromRow.FILE and value is not None:
            self._check_file(f"{name}.{field}", str(value))
        elif rule is FromRow.ANSWERS and value and self._has_hosts:
            raise refused(
                "endpoint_settings",
                f"does not give {name}.{field}: by default answers are shown to no one where"
                " endpoint_hosts lists a host",
                f'{{"{name}": {{"{field}": true}}}}',
            )

    def _check_login(self, name: str, whole: Mapping[str, Any]) -> None:
        """Refuse to show what this process is to a place that only the row names."""
        endpoint = parse_endpoint(whole.get("url"))
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        if not self._destinations.lists(f"{host}:{endpoint.port}"):
            raise refused(
                "endpoint_hosts",
                f"does not list {shown(endpoint.host)} of {name}.url, to which a login of this"
                " process would go",
            )

    def _check_destination(self, field: str, url: object) -> None:
        """Refuse what is known without a look-up; the sink checks every connection."""
        of = "" if field == "url" else f" of {field}"
        try:
            endpoint = parse_endpoint(url)
        except ConfigError as error:
            raise ConfigError(f"sink http: {field}", error.problem, hint=error.hint) from None
        if endpoint.scheme not in listed(self._settings.endpoint_schemes):
            raise refused("endpoint_schemes", f"does not list {endpoint.scheme}{of}")
        if not self._destinations.allows_port(endpoint):
            raise refused("endpoint_ports", f"does not list {endpoint.port}{of}")
        try:
            self._destinations.check_endpoint(endpoint)
        except BlockedAddress as error:
            problem = f"does not list what is not public{of}: {error}"
            raise refused("endpoint_hosts", problem) from None

    def _check_hosts(self, where: str, value: str) -> None:
        for host in _hosts(where, value):
            if not self._destinations.lists(host):
                raise refused("endpoint_hosts", f"does not list {shown(host)} of {where}")

    def _check_references(self, where: str, value: object) -> None:
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for one in value:
                self._check_references(where, one)
        reference = reference_in(value)
        if reference is None:
            return
        scheme, _, name = reference.partition(":")
        if scheme == "env" and not any(_covers(each, name) for each in self._variables):
            raise refused("endpoint_variables", f"does not list {shown(name)} of {where}")
        if scheme == "file":
            self._check_file(where, name)

    def _check_file(self, where: str, name: str) -> None:
        if not self._has_file(name):
            raise refused("endpoint_folders", f"has no folder with {shown(name)} of {where}")

    def _has_file(self, name: str) -> bool:
        path = Path(name)
        if not path.is_absolute() or "\0" in name:
            return False
        path = path.resolve()
        return any(path.is_relative_to(folder) for folder in self._folders)


def check_row(name: str, config: Mapping[str, Any]) -> None:
    """Check what no process lets a row decide, whatever its settings.

    Raises:
        NotPermitted: a parameter has no rule for rows, or an address does not lead over a network.
        ConfigError: the type of the sink is unknown.
    """
    rules = sink_class(name).row_rules
    for field, value in config.items():
        rule = rules.get(field)
        if rule is None:
            raise NotPermitted(
                f"{name}.{field}",
                "is not for an endpoint to set",
                hint="Leave it out. Deliverers may give it to all endpoints of this sink:"
                " set endpoint_settings in forebay.toml, FOREBAY_ENDPOINT_SETTINGS or"
                " --endpoint-settings, for all deliverers.",
            )
        if rule is FromRow.ADDRESS:
            _hosts(f"{name}.{field}", value)


@declaring_door
def checked_row_sink(name: str, config: Mapping[str, Any]) -> None:
    """Check the settings of an endpoint where it is created.

    What no deliverer would take is refused, and what the class of the sink refuses.

    Raises:
        ConfigError: they are refused. Nothing was connected.
    """
    check_row(name, config)
    whole = dict(config)
    if FromRow.CHECKED_ADDRESS in sink_class(name).row_rules.values():
        # Which addresses may be called is known to the deliverers.
        whole["destinations"] = Destinations(https_only=False, ports=None)
    make_sink(name, whole)


def _hosts(where: str, value: object) -> list[str]:
    """Return the hosts of an address, with their ports."""
    found: list[str] = []
    for part in _NEXT_ADDRESS.split(value) if isinstance(value, str) else [""]:
        address = _ADDRESS.fullmatch(part)
        if address is None or address[1] not in _SCHEMES:
            raise NotPermitted(
                where,
                "is not an address that an endpoint may have",
                hint="Write SCHEME://USER:PASSWORD@HOST:PORT/PATH, without options behind `?`.",
            )
        found += address[2].split(",")
    return found


def _covers(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def refused(setting: str, problem: str, value: str = "") -> NotPermitted:
    """Return the error for what a setting of this process does not allow.

    Args:
        setting: its name.
        problem: what it does not allow.
        value: what would allow it, if that is known.
    """
    flag = "--" + setting.replace("_", "-")
    return NotPermitted(
        f"the setting {setting} of this deliverer",
        problem,
        hint=f"To allow it, set {setting}{f' to {value}' if value else ''} in forebay.toml,"
        f" FOREBAY_{setting.upper()} or {flag}, for all deliverers.",
    )

"""What the settings of an endpoint may make a deliverer do."""

import ast
import inspect
import json
import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import ClassVar

import pytest

import forebay.sinks
from forebay.config import DeliverySettings
from forebay.errors import ConfigError
from forebay.sinks import (
    ENTRY_POINTS,
    FromRow,
    NotPermitted,
    Permissions,
    Sink,
    checked_row_sink,
    row_settings,
    sink_class,
    sink_types,
)

TYPES = sink_types()

#: Every parameter that no row may set, and what it would decide. A new parameter stands in
#: ``row_rules`` of its sink, or here.
REFUSED = {
    "celery.app": "an object of Python",
    "http.aws_profile": "runs the commands of a profile, with its rights",
    "http.ca_file": "opens a file, and decides whom to trust",
    "http.destinations": "decides what may be called",
    "http.proxy": "calls another host, which resolves names",
    "kafka.options": "loads libraries, opens files, runs commands",
    "mqtt.ca_file": "opens a file, and decides whom to trust",
    "mqtt.cert_file": "opens a file",
    "mqtt.key_file": "opens a file",
    "redis-stream.max_age": "deletes what others wrote",
    "redis-stream.maxlen": "deletes what others wrote",
    "rq.tasks": "functions that RQ's workers run",
    "sidekiq.tasks": "classes that Sidekiq's workers run",
    "sqs.profile": "runs the commands of a profile, with its rights",
}

#: What each other parameter is given in a row.
PLAIN = {"topic": "t", "subject": "s", "routing_key": "r", "key": "k", "stream": "s"}


def permissions(**settings) -> Permissions:
    return Permissions(DeliverySettings(**settings))


#: What the process must give: a value for each parameter in ``row_needs`` of a sink.
GIVEN = '{"rq": {"tasks": {"a": "shop.ship"}}, "sidekiq": {"tasks": {"a": "Shop::Ship"}}}'


def everything(given=GIVEN) -> Permissions:
    """Return permissions for every sink at one host."""
    return permissions(
        endpoint_sinks=",".join(TYPES), endpoint_hosts="far.example", endpoint_settings=given
    )


def test_every_parameter_that_the_process_must_give_has_a_value_in_these_tests():
    """Without one, tests of a new sink would end in the hint for the owner of a deliverer."""
    given = json.loads(GIVEN)
    needed = {(name, key) for name in TYPES for key in sink_class(name).row_needs}
    assert {(n, key) for n, key in needed if key not in given.get(n, {})} == set(), "add to GIVEN"


def config_of(name, **more):
    """Return the least configuration of a sink."""
    addresses = {
        "forebay": "postgresql://u:p@far.example/d", "http": "https://far.example/", "kafka": "kafka://far.example:9092",
        "nats": "nats://far.example:4222", "rabbitmq": "amqp://u:p@far.example/v", "celery": "redis://far.example/0",
        "mqtt": "mqtt://u@far.example:1883",
        "sqs": "https://far.example/1/q",
    }  # fmt: skip
    address = addresses.get(name, "redis://far.example/0")
    needed = {key: PLAIN.get(key, address) for key in row_settings(name)[1]}
    return ({"url": address} if name == "celery" else {}) | needed | more


def test_every_parameter_of_every_sink_has_a_rule_or_is_refused():
    """Without a rule it is refused whatever the deliverer allows; the list says why."""
    refused = set()
    for name in TYPES:
        rules = sink_class(name).row_rules
        parameters = inspect.signature(sink_class(name)).parameters
        assert rules.keys() <= parameters.keys(), name
        for field in parameters.keys() - rules.keys():
            refused.add(f"{name}.{field}")
            named = rf"{re.escape(name)}\.{field} is not for an endpoint"
            with pytest.raises(NotPermitted, match=named):
                everything().sink(name, config_of(name, **{field: "x"}))
            with pytest.raises(NotPermitted):
                checked_row_sink(name, config_of(name, **{field: "x"}))
    assert refused == REFUSED.keys(), "write into row_rules of the sink, or into REFUSED above"


def test_a_sink_without_rules_takes_nothing_from_a_row(monkeypatch):
    """So a sink of another distribution is refused until it states its rules."""

    class Plain(Sink):
        type: ClassVar[str] = "plain"

        def __init__(self, path):
            raise AssertionError(path)

    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        EntryPoints([EntryPoint("plain", "plain_sinks:Plain", ENTRY_POINTS)]).select,
    )
    monkeypatch.setattr("forebay.sinks._permissions.sink_class", lambda _: Plain)
    with pytest.raises(NotPermitted, match=r"plain\.path"):
        permissions(endpoint_sinks="plain").sink("plain", {"path": "/"})


@pytest.mark.parametrize("name", TYPES)
def test_every_rule_refuses_what_it_says(name):
    """Addresses of other hosts and schemes, references anywhere, answers of listed hosts."""
    assert everything().sink(name, config_of(name)).type == name
    for field, rule in sink_class(name).row_rules.items():
        for reference in ("env:HOME", "file:/etc/passwd"):
            for value in (reference, f"bearer {reference}", [reference], {"a": [reference]}):
                with pytest.raises(ConfigError):
                    everything().sink(name, config_of(name, **{field: value}))
        if rule is FromRow.ADDRESS:
            for url in bad_addresses(config_of(name).get(field, "")):
                with pytest.raises(NotPermitted):
                    everything().sink(name, config_of(name, **{field: url}))
        if rule is FromRow.ANSWERS:
            with pytest.raises(NotPermitted, match="endpoint_settings"):
                everything().sink(name, config_of(name, **{field: True}))
            assert Permissions().sink(name, config_of(name, **{field: True}))


def test_what_runs_in_workers_of_rq_is_given_by_the_deliverer():
    """Otherwise a sender of messages names any function."""
    with pytest.raises(NotPermitted, match=r"rq\.tasks"):
        everything(given=None).sink("rq", config_of("rq"))


def bad_addresses(good):
    scheme = good.partition(":")[0] or "https"
    return [
        f"{scheme}://127.0.0.1/0", f"{scheme}://other.example/0", f"{scheme}://far.example.evil.example/",
        f"{scheme}://far.example,other.example/", f"{scheme}://far.example@other.example/", f"{scheme}:///0",
        f"{scheme}://far.example/0?ssl_ca_certs=/etc/passwd", f"{scheme}://far.example;{scheme}://other.example",
        f"{scheme}://far.example\\@other.example/", f"{scheme}://far.example#@other.example/", f"{scheme}://[::1]/",
        "unix:///run/redis.sock", "sqla+sqlite:////tmp/made", "memory://", "filesystem://far.example/",
        "redis+socket:///s", None, 7,
    ]  # fmt: skip


def test_without_settings_only_https_to_public_addresses_is_possible():
    """Every other sink, scheme, port and address is refused, with the setting to change."""
    default = Permissions()
    assert default.sink("http", {"url": "https://example.com/hook"}).place == "https://example.com"
    for name in set(TYPES) - {"http"}:
        with pytest.raises(NotPermitted, match="endpoint_sinks"):
            default.sink(name, config_of(name))
    for url, setting in [
        ("http://example.com/", "endpoint_schemes"),
        ("https://example.com:8000/", "endpoint_ports"),
        ("https://127.0.0.1/", "endpoint_hosts"),
        ("https://169.254.169.254/", "endpoint_hosts"),
        ("https://[::1]/", "endpoint_hosts"),
    ]:
        with pytest.raises(NotPermitted, match=setting) as caught:
            default.sink("http", {"url": url})
        assert f"FOREBAY_{setting.upper()}" in caught.value.hint


def test_variables_and_folders_are_named_by_the_deliverer(tmp_path):
    """A link out of the folder, a way up, and a name that only begins alike are outside."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "key").write_text("k")
    (tmp_path / "out").write_text("k")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    allowed = permissions(
        endpoint_variables="SHOP_KEY,HOOK_*", endpoint_folders=str(tmp_path / "in")
    )
    url = {"url": "https://example.com/"}
    for reference in ("env:SHOP_KEY", "env:HOOK_1", f"file:{tmp_path}/in/key"):
        assert allowed.sink("http", url | {"secrets": [reference]})
    for reference in (
        "env:SHOP_KEY_2", "env:shop_key", "env:FOREBAY_DATABASE_URL", f"file:{tmp_path}/out",
        f"file:{tmp_path}/in/link", f"file:{tmp_path}/in/../out", "file:in/key",
        f"file:{tmp_path}/inside",
    ):  # fmt: skip
        with pytest.raises(NotPermitted, match=r"endpoint_(variables|folders)"):
            allowed.sink("http", url | {"headers": {"x": reference}})
        with pytest.raises(NotPermitted, match=r"endpoint_(variables|folders)"):
            allowed.sink("http", url | {"auth": f"Basic {reference}"})


def test_what_the_deliverer_gives_wins_over_the_row():
    """So a proxy, a CA file or options are possible, and only the process decides about them."""
    allowed = permissions(endpoint_settings='{"http": {"method": "PUT", "show_response": true}}')
    sink = allowed.sink("http", {"url": "https://example.com/", "method": "DELETE"})
    assert sink._method == "PUT"
    assert sink._shows_response


def test_what_the_deliverer_gives_may_stand_in_the_row_too():
    """
    The hint of the refusal can be followed: what it says to set is enough. What an endpoint can
    never set is refused in words that are true for every deliverer.
    """
    row = {"url": "https://example.com/", "show_response": True}
    with pytest.raises(NotPermitted) as caught:
        permissions(endpoint_hosts="10.0.0.0/8").sink("http", row)
    (value,) = re.findall(r"set endpoint_settings to (.+) in forebay.toml", caught.value.hint)
    for given, shows in ((value, True), ('{"http": {"show_response": false}}', False)):
        allowed = permissions(endpoint_hosts="10.0.0.0/8", endpoint_settings=given)
        assert allowed.sink("http", row)._shows_response is shows

    row = {"url": "https://example.com/", "ca_file": "/etc/ca.pem"}
    for given in ("", '{"http": {"ca_file": "/etc/ca.pem"}}'):
        with pytest.raises(NotPermitted, match=r"http\.ca_file is not for an endpoint") as caught:
            permissions(endpoint_settings=given).sink("http", row)
        assert caught.value.hint.startswith("Leave it out.")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint_ports", "443,x"), ("endpoint_ports", "99999"), ("endpoint_schemes", "gopher"),
        ("endpoint_variables", "*"), ("endpoint_variables", "A*B"), ("endpoint_folders", "/"),
        ("endpoint_folders", "keys"), ("endpoint_settings", "[]"), ("endpoint_settings", "{"),
        ("endpoint_hosts", "10.0.0.1/8"),
    ],
)  # fmt: skip
def test_a_malformed_setting_is_refused_by_its_name(name, value):
    with pytest.raises(ConfigError) as caught:
        permissions(**{name: value})
    assert caught.value.field == name


@pytest.mark.slow
def test_rows_reach_a_sink_through_one_door_only():
    """Nothing that reads endpoints makes a sink by itself."""
    root = Path(forebay.sinks.__file__).parents[1]
    makers = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "func", None)
            if (
                isinstance(node, ast.Call)
                and getattr(name, "id", getattr(name, "attr", "")) == "make_sink"
            ):
                makers.add(str(path.relative_to(root)))
    # The arguments of a command, and the contract of the tests.
    assert makers == {"sinks/_permissions.py", "cli/_drain.py", "testing/_sinks.py"}

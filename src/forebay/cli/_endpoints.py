"""forebay endpoints: create, change and watch endpoints."""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from forebay.cli._commands import Commands, Together, argument, option
from forebay.cli._database import client_of
from forebay.cli.exit import ExitCode
from forebay.cli.options import (
    Dsn,
    Json,
    SinkSettings,
    duration,
    instant_or_age,
    json_object,
    sink_settings,
)
from forebay.cli.output import ago, facts_table, moment, one_line, print_json, table
from forebay.cli.text import Table, Text, console
from forebay.errors import ConfigError, shown
from forebay.model.status import JobStatus
from forebay.policy.retry import human_duration

if TYPE_CHECKING:
    from forebay.client import Client
    from forebay.model.endpoints import Endpoint

commands = Commands()

_POLL_SECONDS: Final = 0.2

_BREAKER_STYLES: Final = {"closed": "green", "half-open": "yellow", "open": "red"}

#: What removes a limit.
_POLICY_WORDS: Final = ("max_retries", "backoff", "base_delay", "increment", "max_delay", "jitter")
_NONE: Final = "none"

Name = Annotated[str, argument("ENDPOINT", "The endpoint.")]
Config = Annotated[
    str | None,
    option("--config JSON", "All settings of the sink as an object; - reads it from stdin."),
]


Most = Annotated[int | None, option("--limit N", "At most this many, the oldest first.")]


def _options(
    *,
    retry: Annotated[
        str | None,
        option("--retry POLICY", "standard, ulak, seconds (10,60,600), or a JSON object."),
    ] = None,
    rate: Annotated[str | None, option("--rate N", "Deliveries started per second.")] = None,
    burst: Annotated[
        str | None, option("--burst N", "Deliveries started at once after a pause.")
    ] = None,
    concurrency: Annotated[
        str | None, option("--concurrency N", "Deliveries that run at once [new: the database's].")
    ] = None,
    breaker_threshold: Annotated[
        str | None,
        option(
            "--breaker-threshold N",
            "Failures in a row that open the breaker [new: the database's].",
        ),
    ] = None,
    breaker_cooldown: Annotated[
        str | None,
        option(
            "--breaker-cooldown SECONDS",
            "Between probes of an open breaker [new: the database's].",
        ),
    ] = None,
    disable_after: Annotated[
        str | None,
        option("--disable-after TIME", "Disable it after this long without a success: 5d."),
    ] = None,
    max_waiting: Annotated[
        str | None,
        option("--max-waiting N", "Deliveries that may wait (new: 1000000); 0: no bound."),
    ] = None,
    when_full: Annotated[
        str | None,
        option("--when-full ACT", "refuse or drop events beyond that (new: refuse)."),
    ] = None,
    max_age: Annotated[
        str | None, option("--max-age TIME", "Deliveries expire at this age: 12h.")
    ] = None,
    keeps_response: Annotated[
        bool | None,
        option(
            "--keep-response/--no-keep-response", "Keep the answer as the result of the delivery."
        ),
    ] = None,
    disable_on_gone: Annotated[
        bool | None,
        option(
            "--disable-on-gone/--no-disable-on-gone",
            "Disable it when it answers 410 (new: yes); else only that message is dead.",
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the options that are given; "none" is None."""
    options: dict[str, Any] = {name: value for name, value in locals().items() if value is not None}
    for name, value in options.items():
        if value == _NONE:
            options[name] = None
        elif name == "retry":
            options[name] = _retry(value)
        elif name in ("disable_after", "max_age"):
            options[name] = duration(value, f"--{name.replace('_', '-')}")
        elif isinstance(value, str) and name != "when_full":
            options[name] = _number(value, name, float if name == "rate" else int)
    return options


Options = Annotated[dict[str, Any], Together(_options)]


@commands.add("list")
def list_(*, dsn: Dsn = None, as_json: Json = False) -> None:
    """List the endpoints with their health: breaker, waiting deliveries, rate, latency, last
    error.
    """
    found = client_of(dsn).endpoints()
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("No endpoints.", style="dim")
        return
    rows = table(
        *("endpoint", "state", "waiting", "oldest", "per s", "p99", "last error"),
        right=("waiting", "per s", "p99"),
        loose=("endpoint", "last error"),
    )
    for each in found:
        rows.add_row(
            each.name,
            _state(each),
            f"{each.waiting:,}",
            ago(each.waiting_since).removesuffix(" ago"),
            _rate(each.accepted_per_second),
            _at_most(each.p99_seconds),
            one_line(each.last_error if each.failing_since and each.last_error else "-"),
        )
    out.print(rows)


@commands.add("show")
def show(name: Name, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Show the settings and the health of one endpoint."""
    found = client_of(dsn).endpoint(name)
    if as_json:
        print_json(found)
    else:
        console().print(_facts(found))


@commands.add("create")
def create(
    name: Name,
    *,
    sink: Annotated[str, option("--sink TYPE", "Where it sends to, such as http.")],
    setting: SinkSettings = None,
    config: Config = None,
    options: Options,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Create an endpoint. Secrets in its settings are references: env:NAME or file:/path."""
    endpoint_id = client_of(dsn).create_endpoint(
        name, sink, _config(config, setting) or {}, **options
    )
    if as_json:
        print_json({"endpoint": name, "endpoint_id": endpoint_id})
    else:
        retry_text = f"; retry {_retry_text(options['retry'])}" if options.get("retry") else ""
        console().print(
            f"created endpoint {name}; forebay endpoints test {name} sends a message{retry_text}"
        )


@commands.add("validate")
def validate(
    name: Name,
    *,
    sink: Annotated[str, option("--sink TYPE", "Where it sends to, such as http.")],
    setting: SinkSettings = None,
    config: Config = None,
    options: Options,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Tell what is wrong with the settings of an endpoint, and write nothing.

    Exit code 1: something is. `forebay endpoints test` tells what the name of a host leads to.
    """
    found = client_of(dsn).validate_endpoint(name, sink, _config(config, setting) or {}, **options)
    if as_json:
        print_json(found)
    out = console()
    for problem in () if as_json else found:
        out.print(Text.assemble((f"{problem.field}: ", "bold"), problem.problem))
        out.print(Text(f"→ {problem.hint}", "cyan"), indent=2)
    if found:
        raise SystemExit(ExitCode.FAILED)
    if not as_json:
        out.print(f"endpoint {name}: nothing is wrong with these settings")


@commands.add("alter")
def alter(
    name: Name,
    *,
    sink: Annotated[str | None, option("--sink TYPE", "Another sink.")] = None,
    setting: SinkSettings = None,
    config: Config = None,
    options: Options,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Change settings of an endpoint, also while it delivers. "none" removes a limit.

    --set changes single settings of the sink; --config replaces all of them.
    """
    client = client_of(dsn)
    given = _config(config, setting)
    if given is not None and config is None and sink is None:
        given = {**client.endpoint(name).config, **given}
    changed = client.alter_endpoint(name, sink=sink, config=given, **options)
    if as_json:
        print_json({"endpoint": name, "changed": changed})
    else:
        retry_text = (
            f"; retry {_retry_text(options['retry'])}" if changed and options.get("retry") else ""
        )
        console().print(
            f"endpoint {name}: {'changed' if changed else 'nothing to change'}{retry_text}"
        )


@commands.add("drop")
def drop(
    name: Name,
    *,
    discard: Annotated[
        bool, option("--discard", "Also if deliveries wait: they become dead letters.")
    ] = False,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Drop an endpoint, with its subscriptions."""
    client_of(dsn).drop_endpoint(name, discard=discard)
    if as_json:
        print_json({"endpoint": name, "dropped": True})
    else:
        console().print(f"dropped endpoint {name}")


@commands.add("enable")
def enable(name: Name, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Enable an endpoint: deliveries that wait are sent.

    Events published meanwhile are not delivered.
    """
    changed = client_of(dsn).enable_endpoint(name)
    if as_json:
        print_json({"endpoint": name, "enabled": changed})
    else:
        console().print(f"endpoint {name}: {'enabled' if changed else 'was enabled already'}")


@commands.add("disable")
def disable(
    name: Name,
    *,
    why: Annotated[str | None, option("--why TEXT", "For the event log.")] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Disable an endpoint: its deliveries wait, and new events are not delivered to it."""
    changed = client_of(dsn).disable_endpoint(name, why)
    if as_json:
        print_json({"endpoint": name, "disabled": changed})
    else:
        console().print(f"endpoint {name}: {'disabled' if changed else 'was disabled already'}")


@commands.add("reset")
def reset(name: Name, *, dsn: Dsn = None, as_json: Json = False) -> None:
    """Close the breaker of an endpoint, and count its failures from 0.

    Deliveries that wait for a probe are sent. Those that are retrying keep their time: `forebay
    jobs retry --endpoint ENDPOINT` sends them now.
    """
    was_open = client_of(dsn).reset_endpoint(name)
    if as_json:
        print_json({"endpoint": name, "reset": was_open})
    else:
        console().print(
            f"endpoint {name}: breaker {'closed' if was_open else 'was closed already'}"
        )
        if was_open:
            console().print(
                f"→ forebay jobs retry --endpoint {shlex.quote(name)} sends what is retrying, too"
            )


@commands.add("rotate-secret")
def rotate_secret(
    name: Name,
    secret: Annotated[
        str, argument("SECRET", "A reference to the secret: env:NAME or file:/path.")
    ],
    *,
    grace: Annotated[str, option("--grace TIME", "How long the old secrets sign too.")] = "24h",
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Sign messages with a new secret; for a grace period the old secrets sign too."""
    client_of(dsn).rotate_secret(name, secret, grace=duration(grace, "--grace"))
    if as_json:
        print_json({"endpoint": name, "secret": secret})
    else:
        console().print(f"endpoint {name}: {secret} signs; the old secrets sign too for {grace}")


@commands.add("test")
def send_test(
    name: Name,
    *,
    wait: Annotated[
        float, option("--wait SECONDS", "How long to wait for the answer.", min=0)
    ] = 30.0,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Send a test message of the kind forebay.test to an endpoint, and wait for the answer."""
    client = client_of(dsn)
    job_id = client.test_endpoint(name)
    deadline = time.monotonic() + wait
    (job,) = client.job(job_id)
    refusal = None
    while not _is_answered(job) and refusal is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        (job,) = client.job(job_id)
        refusal = _refusal(client, job)
    error = _error(client, job) or refusal
    if as_json:
        facts = {"endpoint": name, "job_id": job_id, "state": job.state, "error": error}
        print_json(facts | {"answer": _answer(client, job)})
    elif job.state == "done":
        answer = (_answer(client, job) or {}).get("response")
        console().print(
            f"endpoint {name}: accepted the test message, job {job_id}"
            + (f": {answer}" if answer else "")
        )
    elif error is not None:
        console().print(f"endpoint {name}: {error}; the test message, job {job_id}, is {job.state}")
    else:
        console().print(
            f"endpoint {name}: no answer yet, job {job_id} is {job.state}. Does `forebay "
            f"deliver` run?"
            f" `forebay endpoints show {name}` shows the breaker and pauses."
        )
    if job.state != "done":
        raise SystemExit(ExitCode.FAILED)


@commands.add("replay")
def replay(
    name: Name,
    *,
    since: Annotated[str, option("--since TIME", "From when: an age such as 2h, or ISO 8601.")],
    until: Annotated[str | None, option("--until TIME", "Only before this time.")] = None,
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Deliver the published events of a time again, by the subscriptions of now."""
    begin = instant_or_age(since, "--since")
    assert begin is not None
    job_id = client_of(dsn).replay_endpoint(name, begin, instant_or_age(until, "--until"))
    if as_json:
        print_json({"endpoint": name, "job_id": job_id})
    else:
        console().print(f"endpoint {name}: a router replays, job {job_id}")


@commands.add("redrive")
def redrive(name: Name, *, limit: Most = None, dsn: Dsn = None, as_json: Json = False) -> None:
    """Send the dead letters of an endpoint again."""
    count = client_of(dsn).redrive_endpoint(name, limit=limit)
    if as_json:
        print_json({"endpoint": name, "redriven": count})
    else:
        console().print(f"endpoint {name}: {count:,} redriven")


def _at_most(seconds: float | None) -> str:
    """Return an upper bound; the counts that it is made of know powers of two only."""
    return "-" if seconds is None else f"≤ {human_duration(seconds)}"


def _is_answered(job: JobStatus) -> bool:
    return job.state in ("done", "dead", "retrying", "expired", "cancelled")


def _refusal(client: Client, job: JobStatus) -> str | None:
    """Return why deliverers refuse to call the endpoint, if that was found since the test message
    was sent: such a message waits, and has no error itself.
    """
    assert job.endpoint is not None
    found = client.endpoint(job.endpoint)
    if found.last_failure_at is None or found.last_failure_at < job.enqueued_at:
        return None
    return found.last_error if _is_refused(found) else None


def _is_refused(each: Endpoint) -> bool:
    """Whether the last failure is that a deliverer may not call the endpoint."""
    return (each.last_error or "").startswith("refused by a deliver")


def _answer(client: Client, job: JobStatus) -> dict[str, Any] | None:
    """Return what is kept of the answer; None: nothing."""
    if job.state != "done":
        return None
    kept = [one.result for one in client.job_history(job.job_id) if one.result is not None]
    return kept[-1].value if kept else None


def _error(client: Client, job: JobStatus) -> str | None:
    if job.state == "done":
        return None
    failures = [one for history in client.job_history(job.job_id) for one in history.errors]
    return failures[-1].message if failures else None


def _number(text: str, name: str, kind: type[int | float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(
            f"--{name.replace('_', '-')}", f"is {shown(text)}, not a number", value=text
        ) from None


def _retry(text: str) -> str | list[float] | dict[str, Any]:
    if text.lstrip().startswith("{"):
        return json_object(text, "retry")
    if text[:1].isdigit():
        return [float(_number(each, "retry", float)) for each in text.split(",")]
    return text


def _config(text: str | None, settings: list[str] | None) -> dict[str, Any] | None:
    """Return the settings of the sink; None if none are given."""
    if text is None and not settings:
        return None
    return json_object(text, "config") | sink_settings(settings)


def _state(each: Endpoint) -> Text:
    if each.disabled_at:
        return Text("disabled", style="dim")
    if each.is_paused:
        return Text("paused", style="yellow")
    if (each.failures or each.breaker != "closed") and _is_refused(each):
        return Text("refused", style="bold red")
    if each.breaker == "closed":
        return Text("failing", style="yellow") if each.failures else Text("ok", style="green")
    return Text(f"breaker {each.breaker}", style=_BREAKER_STYLES[each.breaker])


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def _facts(each: Endpoint) -> Table:
    rows = facts_table()
    rows.add_row("endpoint", Text(each.name, style="bold"))
    rows.add_row("state", _state(each))
    if each.disabled_at:
        rows.add_row("disabled", f"{moment(each.disabled_at)} {each.disabled_why or ''}".rstrip())
    if each.is_paused:
        rows.add_row(
            "paused",
            "until resumed" if each.paused_until is None else f"until {moment(each.paused_until)}",
        )
    breaker: str = each.breaker
    if each.opened_at:
        breaker += f" since {moment(each.opened_at)}, next probe {ago(each.next_probe_at)}"
    rows.add_row(
        "breaker",
        f"{breaker}; failures in a row: {each.failures}, opens at {each.breaker_threshold}",
    )
    rows.add_row(
        "waiting",
        f"{each.waiting:,}" + (f", oldest {ago(each.waiting_since)}" if each.waiting_since else ""),
    )
    if each.is_overfull:
        rows.add_row("", Text("full: events are dropped", style="bold red"))
    rows.add_row(
        "per second",
        f"{_rate(each.accepted_per_second)} accepted, {_rate(each.failed_per_second)} failed,"
        f" {_rate(each.rejected_per_second)} rejected, {_rate(each.dropped_per_second)} dropped",
    )
    rows.add_row("p99", _at_most(each.p99_seconds))
    rows.add_row("last success", moment(each.last_success_at))
    rows.add_row("last failure", moment(each.last_failure_at))
    rows.add_row("last error", each.last_error or "-")
    rows.add_row("failing since", moment(each.failing_since))
    rows.add_row("sink", each.sink)
    for name, value in sorted(each.config.items()):
        rows.add_row(f"  {name}", value if isinstance(value, str) else json.dumps(value))
    rows.add_row("retry", _retry_text(each.retry))
    rows.add_row("limits", _limits(each))
    if each.inherits:
        rows.add_row("of database", ", ".join(each.inherits))
    return rows


def _retry_text(retry: Any) -> str:
    """Return the policy with its total: 10 tries over 75 h 35 min."""
    from forebay.sending import PRESETS, as_retries

    if isinstance(retry, dict):
        found = as_retries(retry)
        order = {name: place for place, name in enumerate(_POLICY_WORDS)}
        policy = sorted(retry.items(), key=lambda item: order.get(item[0], len(order)))
        words = [f"{name.replace('_', ' ')} {_word(value)}" for name, value in policy]
        return f"{found}; {', '.join(words)}"

    if isinstance(retry, str):
        return f"{retry}: {as_retries(retry)}" if retry in PRESETS else retry
    delays = f"after {', '.join(f'{s:g}' for s in retry)} s: " if retry else ""
    return f"{delays}{as_retries(retry)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return " ".join(f"{one:g}" for one in value)
    return value if isinstance(value, str) else f"{value:,.10g}"


def _limits(each: Endpoint) -> str:
    parts = [f"{each.concurrency:,} at once"]
    if each.rate is not None:
        burst = "" if each.burst is None else f" (burst {each.burst:,})"
        parts.append(f"{each.rate:g} per second{burst}")
    if each.max_waiting is not None:
        what = "events are dropped" if each.when_full == "drop" else "more is refused"
        parts.append(f"{each.max_waiting:,} waiting, then {what}")
    if each.max_age is not None:
        parts.append(f"age {human_duration(each.max_age)}")
    if not each.disable_on_gone:
        parts.append("not disabled by 410")
    if each.disable_after is not None:
        parts.append(f"disabled after {human_duration(each.disable_after)}")
    return ", ".join(parts)

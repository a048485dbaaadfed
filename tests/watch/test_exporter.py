"""Metrics in the text format of Prometheus: their names, their bounds, and Debian's Prometheus
as a reader.
"""

import asyncio
import http.client
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
import forebay.watch.metrics
from forebay.watch.metrics import CONTENT_TYPE, Exporter, Family
from forebay.watch.metrics._families import text_of
from tests.support.engine import Reader, enqueue, one, shift_clock
from tests.support.mutant import break_function, violation
from tests.support.probe import ANYWHERE, address_of
from tests.support.waiting import wait_for
from tests.support.worker_process import crew

ROOT = Path(__file__).parents[2]
RULES = ROOT / "examples" / "monitoring" / "forebay-rules.yml"

has_prometheus = pytest.mark.skipif(
    not all(shutil.which(name) for name in ("prometheus", "promtool", "prometheus-alertmanager")),
    reason="Prometheus is not installed",
)


def values(text):
    """Return the samples of a text by name and labels."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def test_the_numbers_are_those_of_the_database(database, conn):
    for _ in range(3):
        enqueue(conn, queue="mail")
    enqueue(conn, queue="mail", delay="1 hour")
    shift_clock(conn, 100)
    found = values(Exporter(database).text())
    assert found["forebay_up"] == 1
    assert found['forebay_jobs{queue="mail",group="default",state="ready"}'] == 3
    assert found['forebay_jobs{queue="mail",group="default",state="scheduled"}'] == 1
    assert found['forebay_queue_oldest_ready_seconds{queue="mail",group="default"}'] >= 100
    assert found['forebay_queue_served{queue="mail",group="default"}'] == 0


def test_ends_and_histograms_are_those_of_the_counters(database, conn):
    for _ in range(3):
        enqueue(conn, queue="mail")
    with Reader(database, "mail") as reader:
        batch = reader.claim(2)
        reader.finish(batch)
    conn.execute("select forebay.fold_v1(1, true)")
    found = values(Exporter(database).text())
    assert (
        found['forebay_job_ends_total{queue="mail",group="default",kind="work",outcome="done"}']
        == 2
    )
    assert found['forebay_job_wait_seconds_count{queue="mail",group="default"}'] == 2
    assert found['forebay_job_wait_seconds_bucket{queue="mail",group="default",le="+Inf"}'] == 2
    assert found['forebay_job_wait_seconds_sum{queue="mail",group="default"}'] >= 0


def test_an_alert_is_a_metric(database, conn):
    conn.execute("select forebay.configure('reserve_rows', 1000000000)")
    found = values(Exporter(database).text())
    assert found['forebay_alert{code="reserve",subject="",group="",severity="error"}'] == 1


def test_a_database_that_is_away_is_a_metric(database):
    text = Exporter("host=127.0.0.1 port=1 dbname=none connect_timeout=1").text()
    assert values(text)["forebay_up"] == 0
    assert "forebay_jobs" not in text


def test_the_database_is_read_once_however_many_scrape(database, conn, monkeypatch):
    reads = []
    exporter = Exporter(database, min_seconds=60.0)
    read = exporter._database

    async def counted():
        reads.append(1)
        return await read()

    monkeypatch.setattr(exporter, "_database", counted)

    async def scrape():
        return await asyncio.gather(*(exporter.atext() for _ in range(20)))

    assert len(set(asyncio.run(scrape()))) == 1
    assert len(reads) == 1


def test_labels_are_names_only():
    """What a reader of metrics sees beside numbers: no argument, error, header, key or address."""
    found = forebay.watch.metrics.metric_names().values()
    assert {label for labels in found for label in labels} == {
        "code", "endpoint", "group", "kind", "metric", "mirror", "name", "outcome", "priority",
        "queue", "reason", "schedule", "severity", "sort", "state", "subject", "tag",
    }  # fmt: skip


def test_a_scrape_shows_no_text_of_a_job_and_no_password(database, conn):
    """With jobs that have it everywhere, one of them dead; and of a database that is away."""
    secret = "zzsecret"
    options = {
        "args": {"card": secret}, "headers": json.dumps({"h": secret}),
        "tag": secret, "ordering_key": secret, "correlation_id": secret,
    }  # fmt: skip
    for _ in range(2):
        enqueue(conn, **options.copy())
    error = {"type": "ValueError", "message": secret, "traceback": secret}
    dead = {"offset": 1, "outcome": "dead", "reason": "permanent", "error": error}
    with Reader(database) as reader:
        batch = reader.claim_all()[0]
        reader.settle(batch.claim_no, ended=[dead])
    assert one(conn, "select count(*) from forebay.dead_letter") == 1
    conn.execute("select forebay.fold_v1(1, true)")
    text = Exporter(database).text()
    assert values(text)["forebay_up"] == 1
    assert secret not in text
    away = Exporter(f"postgresql://ann:{secret}@127.0.0.1:1/none?connect_timeout=1").text()
    assert values(away)["forebay_up"] == 0
    assert [part for part in (secret, "127.0.0.1", "ann@", "ann:") if part in away] == []


def test_values_of_a_label_are_capped():
    samples = [
        ((f"q{n}", "default", state), float(n)) for n in range(50) for state in ("ready", "running")
    ]
    family = Family(
        "forebay_jobs", "gauge", "Jobs.", ("queue", "group", "state"), samples, capped=2
    )
    found = dict(family.within(10))
    assert len({key[:2] for key in found}) == 10
    assert sum(found.values()) == sum(value for _, value in samples)
    assert found["other", "other", "ready"] == sum(range(41))
    assert ("q49", "default", "ready") in found
    family.combine = "max"
    assert dict(family.within(10))["other", "other", "ready"] == 40


def test_the_value_of_a_label_may_have_any_character():
    family = Family("x", "gauge", "X.", ("l",), [(('a"b\\c\nd',), 1.0)])
    assert text_of([family]).endswith('x{l="a\\"b\\\\c\\nd"} 1\n')


def test_as_a_wsgi_and_as_an_asgi_application(database):
    started = []
    (body,) = Exporter(database).wsgi({}, lambda *a: started.append(a))
    assert started[0][0] == "200 OK"
    assert b"forebay_up 1" in body
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Exporter(database)({"type": "http", "method": "GET"}, None, send))
    assert (b"content-type", CONTENT_TYPE.encode()) in sent[0]["headers"]
    assert b"forebay_up 1" in sent[1]["body"]


def get(address, path, method="GET"):
    connection = http.client.HTTPConnection(*address, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type"), answer.read().decode()
    finally:
        connection.close()


@pytest.mark.slow
def test_a_worker_answers_beside_its_probes(database, conn, effects):
    with crew(database, effects.path) as workers:
        worker = workers.start(health=ANYWHERE)
        address = address_of(worker)
        enqueue(conn, kind="work", args={"entry": 1})
        wait_for(
            lambda: (
                values(get(address, "/metrics")[2]).get(
                    'forebay_worker_attempts_total{outcome="done"}'
                )
                == 1
            ),
            30,
        )
        status, sort, text = get(address, "/metrics")
        assert (status, sort) == (200, CONTENT_TYPE)
        assert values(text)["forebay_worker_live"] == 1
        assert values(text)['forebay_workers{state="alive"}'] == 1
        assert get(address, "/metrics", "HEAD")[2] == ""
        assert get(address, "/metrics", "POST")[0] == 404
        assert get(address, "/live")[0] == 200


@has_prometheus
def test_promtool_finds_nothing_to_say(database, conn):
    enqueue(conn, queue="mail")
    with Reader(database, "mail") as reader:
        reader.finish(reader.claim(1))
    conn.execute("select forebay.fold_v1(1, true)")
    conn.execute(
        "select forebay.create_endpoint('shop', 'http', '{\"url\": \"http://127.0.0.1:1/\"}')"
    )
    text = Exporter(database).text() + "".join(
        text_of([Family(name, sort, what, labels, [(tuple("x" for _ in labels), 1.0)])])
        for name, sort, what, labels in forebay.watch.metrics.WORKER_METRICS
    )
    assert "forebay_job_wait_seconds_bucket" in text
    told = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")
    told = subprocess.run(
        ["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert "SUCCESS: 4 rules found" in told.stdout


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@has_prometheus
@pytest.mark.slow
def test_prometheus_scrapes_loads_the_rules_and_alertmanager_receives_one(database, conn, tmp_path):
    """
    Its three programs are Debian's; the alert is a real one.
    """
    conn.execute("select forebay.configure('reserve_rows', 1000000000)")
    ours, prometheus, manager = free_port(), free_port(), free_port()
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES.read_text())
    (tmp_path / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "forebay",
            "static_configs": [{"targets": [f"127.0.0.1:{ours}"]}]}],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager}"]}]}]},
    }))  # fmt: skip
    (tmp_path / "alertmanager.yml").write_text(
        json.dumps({"route": {"receiver": "none"}, "receivers": [{"name": "none"}]})
    )
    commands = {
        "forebay": [sys.executable, "-m", "forebay", "metrics", "--listen", f"127.0.0.1:{ours}",
            "--dsn", database],
        "prometheus": [
            "prometheus", f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/tsdb",
            f"--web.listen-address=127.0.0.1:{prometheus}",
        ],
        "alertmanager": [
            "prometheus-alertmanager", f"--config.file={tmp_path}/alertmanager.yml",
            f"--storage.path={tmp_path}/am",
            f"--web.listen-address=127.0.0.1:{manager}", "--cluster.listen-address=",
        ],
    }  # fmt: skip
    programs, logs = [], {name: (tmp_path / f"{name}.log").open("w+") for name in commands}

    def told():
        return "\n".join(
            f"{name}: {Path(log.name).read_text()[-3000:]}" for name, log in logs.items()
        )

    def ask(port, path):
        try:
            return json.loads(get(("127.0.0.1", port), path)[2])
        except (OSError, ValueError):
            return None

    try:
        for name, command in commands.items():
            programs.append(subprocess.Popen(command, stdout=logs[name], stderr=subprocess.STDOUT))

        def received():
            found = ask(manager, "/api/v2/alerts")
            return found if isinstance(found, list) and found else None

        alerts = wait_for(received, 90, told)
        assert {
            (a["labels"]["alertname"], a["labels"]["code"], a["labels"]["severity"]) for a in alerts
        } == {("ForebayAlert", "reserve", "error")}
        targets = ask(prometheus, "/api/v1/targets")["data"]["activeTargets"]
        assert [target["health"] for target in targets] == ["up"], told()
        groups = ask(prometheus, "/api/v1/rules")["data"]["groups"]
        assert [rule["health"] for group in groups for rule in group["rules"]] == ["ok"] * 4
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait(20)
        for log in logs.values():
            log.close()


def pages(conn):
    """Return the pages that one read of the measurements touches, in a session with warm caches."""
    query = "explain (analyze, buffers, format json) select forebay.measurements()"
    for _ in range(2):
        (plan,) = conn.execute(query).fetchone()
    return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]


def grows_with_jobs(conn):
    """Compare a queue with a hundred waiting jobs to one with twenty thousand, after maintenance
    has counted them.
    """
    many = (
        "select forebay.enqueue_many((select jsonb_agg(jsonb_build_object('kind', 'work', "
        "'queue', 'mail')) from generate_series(1, %s)))"
    )
    conn.execute(many, [100])
    conn.execute("select forebay.renew_counters_v1(1)")
    few = pages(conn)
    conn.execute(many, [20_000])
    conn.execute("select forebay.renew_counters_v1(1)")
    assert pages(conn) < few + 150


@pytest.mark.usual("reads pages as the owner")
def test_a_scrape_does_not_scan_what_waits(database, conn):
    grows_with_jobs(conn)


@pytest.mark.usual("reads pages as the owner")
def test_without_its_bound_it_would(database, conn):
    break_function(database, "_oldest_unread", ("' limit 100) u) u'", "') u) u'"))
    with violation():
        grows_with_jobs(conn)

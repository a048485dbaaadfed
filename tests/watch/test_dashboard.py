"""The dashboard for Grafana: its form, and that each query names metrics and labels that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from forebay.watch.metrics import metric_names

FILE = Path(__file__).parents[2] / "examples" / "monitoring" / "grafana-dashboard.json"
RULES = FILE.with_name("forebay-rules.yml")
TAG_RULES = FILE.with_name("forebay-tag-rules.yml")

has_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="Prometheus is not installed"
)

#: The parts of the model of a dashboard that we use, as of schema version 39: name and type, of the
#: dashboard and of a panel.
DASHBOARD = {
    "title": str, "uid": str, "description": str, "tags": list, "schemaVersion": int,
    "version": int, "editable": bool,
    "timezone": str, "refresh": str, "time": dict, "annotations": dict, "links": list,
    "templating": dict, "panels": list,
}  # fmt: skip
PANEL = {
    "id": int, "title": str, "description": str, "type": str, "datasource": dict, "gridPos": dict,
    "targets": list,
    "fieldConfig": dict, "options": dict,
}  # fmt: skip
TARGET = {"refId": str, "datasource": dict, "expr": str, "legendFormat": str}

#: Units of Grafana, and types of panels of its core.
UNITS = {"short", "s", "ops", "opm", "bytes"}
TYPES = {"stat", "timeseries", "table"}


@pytest.fixture
def dashboard():
    return json.loads(FILE.read_text())


def conforms(value, schema, optional=()):
    assert {name: type(value[name]) for name in schema} == schema
    assert set(value) <= set(schema) | set(optional)


def queries(dashboard):
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_it_has_the_form_that_grafana_imports(dashboard):
    conforms(dashboard, DASHBOARD)
    assert "id" not in dashboard, "Grafana would replace the dashboard with that id"
    for panel in dashboard["panels"]:
        conforms(panel, PANEL)
        assert panel["type"] in TYPES
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            conforms(target, TARGET, ("instant", "format"))
            assert (
                target["datasource"]
                == panel["datasource"]
                == {
                    "type": "prometheus",
                    "uid": "${datasource}",
                }
            )
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_no_two_panels_overlap(dashboard):
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_each_query_names_metrics_labels_and_variables_that_exist(dashboard):
    known = metric_names()
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    texts = RULES.read_text() + TAG_RULES.read_text()
    rules = re.findall(r"^\s+expr: (.+)$", texts, re.MULTILINE)
    assert len(rules) == 4 + 3
    known |= {
        f"{name}_bucket": (*known[name], "le")
        for name in ("forebay_job_wait_seconds", "forebay_job_duration_seconds")
    }
    for query in [*queries(dashboard), *rules]:
        names = re.findall(r"\bforebay_\w+", query)
        assert names
        assert set(names) <= set(known), query
        labels = {label for name in names for label in known[name]}
        by = {
            label.strip()
            for part in re.findall(r"by \(([^)]*)\)", query)
            for label in part.split(",")
        }
        matched = set(re.findall(r"(\w+)(?:=~?|!=)\"", query))
        assert by | matched <= labels, query
        assert set(re.findall(r"\$(\w+)", query)) <= variables | {"__rate_interval"}, query


def test_every_metric_but_some_is_on_it(dashboard):
    """What is left out is for alerts, or says the same again."""
    shown = {
        name.removesuffix("_bucket")
        for name in re.findall(r"\bforebay_\w+", " ".join(queries(dashboard)))
    }
    assert set(metric_names()) - shown == {
        "forebay_alerts_checked_timestamp_seconds", "forebay_cancelled_jobs",
        "forebay_endpoint_breaker",
        "forebay_endpoint_disabled", "forebay_endpoint_full",
        "forebay_endpoint_oldest_waiting_seconds",
        "forebay_endpoint_latency_p99_seconds",
        "forebay_log_segments", "forebay_maintenance_duties_failing", "forebay_mirror_due",
        "forebay_queue_open_breakers", "forebay_queue_paused",
        "forebay_queue_recently_completed", "forebay_queue_served",
        "forebay_schedule_recently_missed",
        "forebay_scrape_duration_seconds", "forebay_worker_claimed_jobs_total",
        "forebay_worker_leases_lost_total",
        "forebay_worker_listener_errors_total", "forebay_worker_live", "forebay_worker_ready",
        "forebay_worker_reconnects_total", "forebay_worker_steps_total",
        "forebay_workers_memory_bytes", "forebay_workers_slots",
    }  # fmt: skip


def test_each_variable_lists_a_label_that_exists(dashboard):
    """The lists of values that Grafana asks for; queries may use the variables before."""
    known = metric_names()
    before = {"datasource"}
    for variable in dashboard["templating"]["list"][1:]:
        query = variable["query"]["query"]
        metric, used, label = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", query).groups()
        assert label == variable["name"]
        assert label in known[metric]
        assert set(re.findall(r"\$(\w+)", used or "")) <= before
        before.add(variable["name"])
    assert before == {"datasource", "queue", "kind", "tag", "priority"}


@pytest.mark.parametrize("label", ["kind", "tag", "priority"])
def test_completed_waiting_and_expired_jobs_are_shown_by(dashboard, label):
    """Each with all four filters, and without counting a job once for each exporter."""
    panels = [one for one in dashboard["panels"] if one["title"].endswith(f" by {label}")]
    shown = {one["title"].removesuffix(f" by {label}") for one in panels}
    assert shown == {"Completed a minute", "Waiting jobs", "Expired and dead a minute"}
    for panel in panels:
        (target,) = panel["targets"]
        assert f"sum by ({label}) (max by (" in target["expr"]
        for name in ("queue", "kind", "tag", "priority"):
            assert f'{name}=~"${name}"' in target["expr"]


@has_promtool
def test_prometheus_reads_each_query(dashboard, tmp_path):
    """As rules, since promtool checks these."""
    rules = [
        {
            "record": f"forebay:{number}",
            # Grafana puts the chosen values there.
            "expr": re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", "5m")),
        }
        for number, query in enumerate(queries(dashboard))
    ]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    told = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


#: Samples of a minute each, of two exporters that are scraped apart: jobs of the tag ``stuck`` are
#: ready and none is completed, those of ``busy`` are, ``long`` has very many, and one of ``weak``
#: dies.
_PLACE = 'queue="mail",group="default",kind="work",priority="100"'
_TAGS = {
    "stuck": ("0x40", "0x40", "5x40"),
    "busy": ("0+10x40", "0x40", "5x40"),
    "long": ("0+10x40", "0x40", "10001x40"),
    "weak": ("0+10x40", "0x29 1x10", "5x40"),
    "idle": ("7x40", "0x40", "0x40"),
}


@has_promtool
def test_the_rules_by_tag_fire_when_they_should(tmp_path):
    """Three tags have one fault each; a busy and an idle one have none."""
    series = [
        {
            "series": f'{name}{{{_PLACE},tag="{tag}",{label},instance="{instance}"}}',
            "values": values,
        }
        for tag, (done, dead, ready) in _TAGS.items()
        for instance in ("a", "b")
        for name, label, values in (
            ("forebay_job_ends_by_tag_total", 'outcome="done"', done),
            ("forebay_job_ends_by_tag_total", 'outcome="dead"', dead),
            ("forebay_jobs_by_tag", 'state="ready"', ready),
        )
    ]
    rules = {
        "ForebayTagCompletesNothing": ("stuck", "error"),
        "ForebayTagTooManyWait": ("long", "warning"),
        "ForebayTagExpiresOrDies": ("weak", "warning"),
    }
    expected = []
    for name, (tag, severity) in rules.items():
        labels = {"queue": "mail", "tag": tag, "severity": severity}
        expected.append({"eval_time": "40m", "alertname": name, "exp_alerts": [
            {"exp_labels": labels, "exp_annotations": annotations_of(name, tag)}]})  # fmt: skip
        expected.append({"eval_time": "9m", "alertname": name, "exp_alerts": []})
    file = tmp_path / "test.json"
    file.write_text(json.dumps({
        "rule_files": [str(TAG_RULES)], "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": expected}],
    }))  # fmt: skip
    told = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


def annotations_of(name, tag):
    """Return the annotations of a rule, for the jobs of the test above."""
    text = TAG_RULES.read_text().split(f"alert: {name}\n")[1]
    found = dict(re.findall(r'^ +(summary|description): "(.*)"$', text, re.MULTILINE)[:2])
    values = {"queue": "mail", "tag": tag}
    for label, value in values.items():
        found = {
            key: one.replace(f"{{{{ $labels.{label} }}}}", value) for key, one in found.items()
        }
    number = {"long": "10001", "weak": "1"}.get(tag, "")
    return {key: one.replace("{{ $value | printf `%.0f` }}", number) for key, one in found.items()}

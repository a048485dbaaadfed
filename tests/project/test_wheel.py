"""The wheel that users install has everything the checkout has."""

import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="building needs the dev extra")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    """
    SQL files and the type marker are no Python modules, and are shipped all the same.
    """
    package = ROOT / "src" / "forebay"
    wanted = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert any(name.endswith(".sql") for name in wanted)
    assert "forebay/py.typed" in wanted
    assert wanted <= set(wheel.namelist())


def test_nothing_else_is_in_the_wheel(wheel):
    """
    Neither tests nor tools land in users' environments.
    """
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert tops == {"forebay", "forebay-0.1.0.dist-info"}


def test_the_wheel_names_its_licence_and_its_command(wheel):
    """
    The licence's text, the command line's entry point and the extras are in the metadata.
    """
    info = "forebay-0.1.0.dist-info"
    metadata = message_from_string(wheel.read(f"{info}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "forebay = forebay.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert {"embedded", "test", "dev"} <= set(metadata.get_all("Provides-Extra"))

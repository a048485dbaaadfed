"""The distributions that users install have everything the checkout has."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from forebay.sql import migrations

pytest.importorskip("hatchling", reason="building needs the dev extra")

ROOT = Path(__file__).parents[2]


def built(project: Path, folder: Path, target: str = "wheel") -> Path:
    """Build a distribution of a project and return its path."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder],
        cwd=project,
        check=True,
        capture_output=True,
    )
    (path,) = folder.iterdir()
    return path


def installed(distribution: Path, folder: Path) -> Path:
    """Install a distribution beside this environment, whose packages it needs.

    Return the folder.
    """
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--no-deps",
         "--no-index", "--no-build-isolation", "--no-compile", "--target", folder, distribution],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> dict[str, Path]:
    return {
        target: built(ROOT, tmp_path_factory.mktemp(target), target)
        for target in ("wheel", "sdist")
    }


@pytest.fixture(scope="module")
def wheel(distributions) -> zipfile.ZipFile:
    with zipfile.ZipFile(distributions["wheel"]) as archive:
        yield archive


@pytest.fixture(scope="module")
def bench_wheel(tmp_path_factory) -> zipfile.ZipFile:
    with zipfile.ZipFile(built(ROOT / "bench", tmp_path_factory.mktemp("dist"))) as archive:
        yield archive


def files_of(folder: Path, root: Path | None = None) -> set[str]:
    return {
        str(path.relative_to(root or folder.parent))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(wheel):
    """
    SQL files and the type marker are no Python modules, and are shipped all the same. The sources
    of the schema are not: what is composed of them is.
    """
    package = ROOT / "src" / "forebay"
    sources = files_of(package / "sql" / "schema", package.parent) | {"forebay/sql/composer.py"}
    wanted = files_of(package) - sources | {"forebay/sql/migrations/0001_initial.sql"}
    assert "forebay/py.typed" in wanted
    assert wanted <= set(wheel.namelist())
    assert not sources & set(wheel.namelist())


@pytest.mark.slow
@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_an_installed_distribution_has_the_schema_of_its_sources(
    distributions, target: str, tmp_path: Path
):
    """
    The first migration is a file there, equal to what a checkout uses, and nothing is read from the
    checkout. pip builds a wheel from the source distribution first.
    """
    folder = installed(distributions[target], tmp_path / "site")
    file = folder / "forebay" / "sql" / "migrations" / "0001_initial.sql"
    assert file.read_text(encoding="utf-8") == migrations()[0].text

    code = "import forebay.sql as sql; print(sql.__file__, sql.migrations()[0].checksum)"
    for arguments in (["-c", code], ["-m", "forebay", "--version"]):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        )
        if "-c" in arguments:
            place, checksum = done.stdout.split()
            assert Path(place).is_relative_to(folder)
            assert checksum == migrations()[0].checksum


def test_an_editable_installation_composes_the_schema_when_it_is_used(tmp_path: Path):
    """
    It has no copy of the first migration, which an edit of the sources would leave behind.
    """
    code = (
        "from hatchling.builders.wheel import WheelBuilder as B; "
        "list(B('.').build(directory=%r, versions=['editable']))"
    )
    subprocess.run([sys.executable, "-c", code % str(tmp_path)], cwd=ROOT, check=True)
    (path,) = tmp_path.iterdir()
    with zipfile.ZipFile(path) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".sql")]


def test_nothing_else_is_in_the_wheel(wheel):
    """
    Neither tests nor tools land in users' environments, nor the benchmarks; the demo does.
    """
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert tops == {"forebay", "forebay-0.1.0.dist-info"}
    assert not [name for name in wheel.namelist() if "bench" in name]
    assert "forebay/demo/_run.py" in wheel.namelist()


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


def test_the_page_on_the_package_index_has_no_relative_link(wheel):
    """
    The README is shown there without the checkout: each link and image names the repository and the
    version, and what it names exists.
    """
    metadata = message_from_string(wheel.read("forebay-0.1.0.dist-info/METADATA").decode())
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL"))
    assert set(urls) == {"Documentation", "Repository", "Issues", "Changelog"}
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = metadata.get_payload()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    titles = [re.sub(r"\(.*?\)", "", text.partition("\n")[0]) for text in (page, readme)]
    assert titles[0] == titles[1]
    targets = re.findall(r"\]\(([^)\s]+)\)|<(?:img|a) [^>]*(?:src|href)=.([^'\" >]+)", page)
    targets = ["".join(found) for found in targets]
    assert len(targets) == len(re.findall(r"\]\(", readme)) > 40
    raw = urls["Repository"].replace("github.com", "raw.githubusercontent.com")
    bases = [f"{urls['Repository']}/{view}/v0.1.0/" for view in ("blob", "tree")]
    bases.append(f"{raw}/v0.1.0/")
    for target in targets:
        if target.startswith("#"):
            continue
        assert target.startswith("https://"), target
        for base in bases:
            if target.startswith(base):
                path = ROOT / target.removeprefix(base).partition("#")[0]
                assert path.exists(), target
                assert path.is_dir() == ("/tree/" in base), target
    assert any(target.endswith(".svg") and target.startswith(raw) for target in targets)


def test_the_benchmarks_are_a_distribution_beside_it(bench_wheel):
    """
    It has its own package, adds its command, and needs exactly the version of Forebay that it
    measures.
    """
    names = set(bench_wheel.namelist())
    assert files_of(ROOT / "bench" / "src" / "forebay_bench") <= names
    assert {name.partition("/")[0] for name in names} == {
        "forebay_bench",
        "forebay_bench-0.1.0.dist-info",
    }
    info = "forebay_bench-0.1.0.dist-info"
    entry_points = bench_wheel.read(f"{info}/entry_points.txt").decode()
    assert "[forebay.commands]\nbench = forebay_bench._command:bench" in entry_points
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    metadata = message_from_string(bench_wheel.read(f"{info}/METADATA").decode())
    assert metadata["Version"] == version
    assert any(url.startswith("Repository, https://") for url in metadata.get_all("Project-URL"))
    links = re.findall(r"\]\(([^)\s]+)\)", metadata.get_payload())
    assert links
    assert all(link.startswith("https://") for link in links)
    assert f"forebay[embedded]=={version}" in metadata.get_all("Requires-Dist")

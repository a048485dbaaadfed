"""What is published says one version, and where its parts are."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BENCH = tomllib.loads((ROOT / "bench/pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_both_distributions_have_one_version():
    """
    The benchmarks measure parts that are not public, so they need exactly this version.
    """
    version = CORE["version"]
    assert BENCH["version"] == version
    assert f"forebay[embedded]=={version}" in BENCH["dependencies"]
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    assert {each["version"] for each in locked if each["name"] in {"forebay", "forebay-bench"}} == {
        version
    }


def test_the_changelog_begins_with_this_version():
    """
    A reader of the package index finds what the version has.
    """
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", text, re.MULTILINE)
    assert heading
    assert heading[1] == CORE["version"].removesuffix(".dev0")


@pytest.mark.parametrize("project", [CORE, BENCH], ids=lambda project: project["name"])
def test_the_metadata_lead_to_code_changes_and_licence(project):
    """
    The page of the package index has its links, and each classifier fits `requires-python`.
    """
    urls = project["urls"]
    assert set(urls) >= {"Documentation", "Repository", "Issues", "Changelog"}
    assert all(each.startswith("https://github.com/forebay/forebay") for each in urls.values())
    for address in urls.values():
        if "/main/" in address:
            assert (ROOT / address.partition("/main/")[2]).exists(), address
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    if project is BENCH:
        assert (ROOT / "bench/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    lowest = tuple(int(each) for each in project["requires-python"].removeprefix(">=").split("."))
    named = [
        tuple(int(part) for part in each.rpartition(" ")[2].split("."))
        for each in project["classifiers"]
        if re.search(r":: 3\.\d+$", each)
    ]
    assert min(named) == lowest
    assert project["keywords"]
    assert not [each for each in project["classifiers"] if each.startswith("License ::")]

"""The scripts that run the tests: what they choose, what they write down, and what they take for
a pass.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nested import run_pytest

ROOT = Path(__file__).parents[2]

#: In place of Python in a checkout's environment: a run of pytest fails, and what failed passes
#: alone.
PYTHON = f"""#!/usr/bin/env bash
case "$*" in
    *"--last-failed"*) echo "passed alone" ;;
    "-m pytest"*) echo "$*" >>calls; cp failures.json "$FOREBAY_TESTS_RECORD"; exit 1 ;;
    "-m pip install"*) echo "$*" >>installed ;;
    "-m compileall"* | "-m pip"*) ;;
    "-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp tools/right "$3/bin/forebay" ;;
    *) exec {sys.executable} "$@" ;;
esac
"""

TESTS = """
import pytest

@pytest.fixture
def broken():
    yield
    raise RuntimeError

def test_passes(): ...

def test_fails(): raise RuntimeError

def test_ends_badly(broken): ...

@pytest.mark.skip(reason="some")
def test_is_left_out(): ...
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder in which scripts/test believes that everything is set up."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("pyproject.toml", "bench/pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    installed = (ROOT / "pyproject.toml").read_text() + (ROOT / "bench/pyproject.toml").read_text()
    for extra in ("test", "dev", "docs"):
        (tmp_path / f".venv/.installed-{extra}").write_text(installed)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    return tmp_path


def run(folder, *words, failures=(), **environment):
    """Run a script in a checkout whose tests fail so."""
    (folder / "failures.json").write_text(json.dumps({"failures": list(failures)}))
    return subprocess.run(
        words,
        cwd=folder,
        # .ci/run allows some failures, and a nightly run keeps records.
        env=os.environ | {"FOREBAY_ALONE_MAX": "", "FOREBAY_TESTS_RECORDS": ""} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "allowed", "code"), [(1, "", 1), (3, "3", 0), (4, "3", 1)], ids=str
)
def test_a_test_that_passes_only_alone_is_no_pass(checkout, failed, allowed, code):
    """
    Each is named at the end. The run fails, unless it was said how many may do so and there are not
    more.
    """
    names = [f"tests/unit/test_x.py::test_{n}[a b]" for n in range(failed)]
    done = run(checkout, "scripts/test", failures=names, FOREBAY_ALONE_MAX=allowed)
    last = done.stdout.partition("passed alone")[2]
    assert done.returncode == code, done.stdout + done.stderr
    assert all(f"passed only when run alone: {name}, on PostgreSQL 18" in last for name in names)


def test_the_parts_of_the_nightly_run_are_known_to_the_tests():
    """
    Each part that .ci/nightly lists but its checks is one of scripts/test, and no other word is.
    """
    listed = subprocess.run(
        [ROOT / ".ci/nightly", "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    done = subprocess.run(
        [ROOT / "scripts/test", "--nightly=nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 64
    assert ["checks", *done.stderr.rpartition(":")[2].split()] == listed


@pytest.mark.slow
def test_a_run_of_the_tests_leaves_a_record(tmp_path):
    """
    A test counts once, by its worst phase; those that failed are named.
    """
    (tmp_path / "test_some.py").write_text(TESTS)
    run_pytest(
        tmp_path,
        "-p",
        "tests.support.fix_record",
        "-n",
        "2",
        FOREBAY_TESTS_RECORD=str(tmp_path / "record.json"),
    )
    found = json.loads((tmp_path / "record.json").read_text())
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 2, 1)
    assert found["failures"] == ["test_some.py::test_ends_badly", "test_some.py::test_fails"]
    assert len(found["slowest"]) == 4


def test_a_part_of_the_nightly_run_leaves_a_record(checkout):
    """
    It says which commit was tested with which seed, and what came of each suite; the seed is the
    one that the suites got.
    """
    (checkout / ".gitignore").write_text("*\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *words], cwd=checkout, check=True)
    done = run(checkout, ".ci/nightly", "quick", failures=["tests/unit/test_x.py::test_it"])
    assert done.returncode == 1
    (file,) = (checkout / ".nightly").iterdir()
    record = json.loads(file.read_text())
    assert (record["part"], record["passed"], record["is_commit_changed"]) == (
        "quick",
        False,
        False,
    )
    assert len(record["commit"]) == 40
    assert [suite["failures"] for suite in record["suites"].values()] == [
        ["tests/unit/test_x.py::test_it"]
    ]
    assert f"--seed {record['seed']} " in (checkout / "calls").read_text()


@pytest.mark.parametrize(
    ("broken", "named", "are_tested"),
    [
        (None, None, True),
        ("ruff", "lint", False),
        ("mypy", "types: mypy", True),
        ("mkdocs", "documentation site", True),
        ("tests", "tests", True),
    ],
)
def test_each_section_of_ci_can_fail_the_run(checkout, broken, named, are_tested):
    """
    All output is shown, what came of the tests last. Only lint and imports keep the tests from
    being run.
    """
    tools = checkout / "tools"
    tools.mkdir()
    for name, code in (("right", 0), ("wrong", 1)):
        (tools / name).write_text(f"#!/bin/sh\necho output of $(basename $0)\nexit {code}\n")
        (tools / name).chmod(0o755)
    for name in ("ruff", "lint-imports", "mypy", "pyright", "mkdocs"):
        shutil.copy(tools / ("wrong" if name == broken else "right"), checkout / ".venv/bin" / name)
    (checkout / "scripts/test").write_text(
        "#!/bin/sh\necho == tests on X\necho much\necho ==== 3 passed in 1.00s ====\n"
        f"echo passed only when run alone: a, on X\nexit {int(broken == 'tests')}\n"
    )
    done = run(checkout, ".ci/run")
    assert done.returncode == int(broken is not None), done.stdout + done.stderr
    assert done.stderr.endswith(f"FAILED: {named}\n" if named else "")
    digest = ["== tests on X", "==== 3 passed in 1.00s ====", "passed only when run alone: a, on X"]
    assert ("\n".join(digest) in done.stdout) == are_tested
    for name in ("mypy", "pyright", "mkdocs"):
        assert (f"output of {name}" in done.stdout) == are_tested


def test_the_tests_run_on_each_other_python_that_is_there(checkout):
    """
    One is on the PATH, one is pyenv's and its shim is of no use, and one is missing: it is named as
    left out, which is no failure. No Python is downloaded.
    """
    home = checkout / "home"
    answers = '#!/bin/sh\ncase "$2" in *"!= \'{}\'"*) exit 0 ;; esac\nexit 1\n'
    programs = {
        "bin/python3.12": answers.format("3.12"),
        "bin/python3.13": "#!/bin/sh\nexit 127\n",
        "home/.pyenv/versions/3.13.9/bin/python": answers.format("3.13"),
        "bin/python3.14": "#!/bin/sh\nexit 127\n",
        "bin/uv": """#!/bin/sh
[ "$UV_PYTHON_DOWNLOADS" = never ] || exit 9
case "$*" in
    "python find"*) exit 2 ;;
    *) echo "$UV_PROJECT_ENVIRONMENT $*" >>uv-calls
       mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"
       cp .venv/bin/python "$UV_PROJECT_ENVIRONMENT/bin" ;;
esac
""",
    }
    for name, text in programs.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
        (checkout / name).chmod(0o755)
    python = checkout / ".venv/bin/python"
    python.write_text(
        PYTHON.replace('echo "$*" >>calls', 'echo "$0 $*" >>calls').replace("exit 1", "exit 0")
    )
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    done = run(
        checkout, "scripts/test", "--nightly=other-pythons",
        PATH=path, HOME=str(home), PYENV_ROOT=str(home / ".pyenv"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out, not on this machine: tests on Python 3.14\n" in done.stdout
    calls = (checkout / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == [
        f".venv/python{version}/bin/python" for version in ("3.12", "3.13")
    ]
    assert all(call.endswith("tests/unit") for call in calls)
    made = [call.split() for call in (checkout / "uv-calls").read_text().splitlines()]
    assert [(words[0], words[words.index("--python") + 1]) for words in made] == [
        (".venv/python3.12", str(checkout / "bin/python3.12")),
        (".venv/python3.13", str(home / ".pyenv/versions/3.13.9/bin/python")),
    ]


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_the_site_is_built_with_its_own_extra_only(checkout, tool):
    """
    In a new checkout scripts/docs installs the extra `docs`, not the tests, once: by uv, and by pip
    where uv is of no use.
    """
    shutil.copy(ROOT / "uv.lock", checkout / "uv.lock")
    for stamp in (checkout / ".venv").glob(".installed-*"):
        stamp.unlink()
    programs = {
        ".venv/bin/mkdocs": "#!/bin/sh\necho built >>site-calls\n",
        "bin/uv": f'#!/bin/sh\necho "$*" >>uv-calls\nexit {int(tool == "pip")}\n',
    }
    for name, text in programs.items():
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text(text)
        (checkout / name).chmod(0o755)
    for _ in range(2):
        done = run(checkout, "scripts/docs", PATH=f"{checkout / 'bin'}:{os.environ['PATH']}")
        assert done.returncode == 0, done.stdout + done.stderr
    (asked,) = (checkout / "uv-calls").read_text().splitlines()
    words = asked.split()
    assert [words[n + 1] for n, word in enumerate(words) if word == "--extra"] == ["docs"]
    assert "--all-packages" not in words
    if tool == "pip":
        locked, itself = (checkout / "installed").read_text().splitlines()
        assert locked.endswith("--requirement .venv/requirements.txt")
        assert itself.endswith("--editable .[docs]")
        names = (checkout / ".venv/requirements.txt").read_text()
        assert "mkdocs-material==" in names
        assert "\npytest==" not in names
    stamps = {file.name for file in (checkout / ".venv").glob(".installed-*")}
    assert stamps == {".installed-docs"}
    assert (checkout / "site-calls").read_text() == "built\n" * 2


@pytest.mark.parametrize(
    ("change", "chosen", "others"),
    [
        ("tests/cli/test_top.py", {"cli"}, {"project", "sql", "unit"}),
        ("docs/howto/limits.md", {"project"}, {"sql", "unit"}),
        ("src/forebay/mirror/__init__.py", {"mirror", "unit", "project"}, {"sql", "client"}),
        ("src/forebay/worker/__init__.py", {"worker", "faults", "concurrency"}, {"mirror"}),
        ("src/forebay/sql/schema/tables.sql", {"sql", "worker", "mirror", "unit"}, set()),
        ("tests/support/waiting.py", {"sql", "worker", "mirror", "unit"}, set()),
        ("pyproject.toml", {"sql", "worker", "mirror", "unit"}, set()),
    ],
)
def test_a_change_chooses_the_folders_that_concern_it(change, chosen, others):
    """
    What all tests share, and the packages that all others stand on, choose all.
    """
    spec = importlib.util.spec_from_file_location("made", ROOT / "scripts/_changed.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    found = made.folders_of([change])
    assert chosen <= found
    assert not others & found

"""Which changes of files a development server sees."""

import os

import pytest

from forebay.cli._reload import Watch


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "jobs.py").write_text("x = 1")
    return tmp_path


def test_a_change_a_new_and_a_deleted_file_are_seen_once(project):
    """
    Also a change that keeps the length, by its time.
    """
    watch = Watch(project)
    assert watch.changed() is None
    file = project / "pkg" / "jobs.py"
    file.write_text("x = 2")
    os.utime(file, ns=(1, 1))
    assert watch.changed() == "pkg/jobs.py"
    assert watch.changed() is None
    (project / "more.py").write_text("")
    assert watch.changed() == "more.py"
    file.unlink()
    assert watch.changed() == "pkg/jobs.py"
    (project / "forebay.toml").write_text("")
    assert watch.changed() == "forebay.toml"


def test_what_is_not_code_of_the_project_is_not_watched(project):
    """
    Caches, hidden folders, environments under any name, other files: they change while a worker
    runs.
    """
    for folder in (".git", "__pycache__", "node_modules", "env/lib"):
        (project / folder).mkdir(parents=True)
    (project / "env" / "pyvenv.cfg").touch()
    watch = Watch(project)
    for name in (".git/x.py", "__pycache__/y.py", "node_modules/z.py", "env/lib/w.py", "data.csv"):
        (project / name).write_text("1")
    assert watch.changed() is None


def test_the_number_of_watched_files_is_bounded(project):
    """
    A command in a folder with a million files must not read all of them twice a second.
    """
    for number in range(20):
        (project / f"f{number:02}.py").touch()
    watch = Watch(project, files_max=5)
    assert len(watch._times()) == 5

"""Which project a folder belongs to, and the name of its database."""

from pathlib import Path

import pytest

from forebay.embedded import Project


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def make(folder: Path, marker: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if marker:
        (folder / marker).touch()
    return folder


@pytest.mark.parametrize("marker", ["pyproject.toml", "forebay.toml", "manage.py", ".git"])
def test_every_folder_of_a_project_has_its_database(home, marker):
    """
    The nearest folder with a file that a project begins with is its root.
    """
    shop = make(home / "code" / "shop", marker)
    below = make(shop / "src" / "shop")
    assert Project.of(below) == Project.of(shop)
    assert Project.of(below).folder == shop.resolve()
    assert Project.of(make(home / "code" / "other")) != Project.of(shop)


def test_projects_of_one_name_in_different_folders_are_two(home):
    """
    The name of a database shows the project, and is valid and different whatever the folder is
    called.
    """
    names = ["shop", "Shop", "a/shop", "b/shop", "-- x'; drop", "ö", "a" * 200]
    found = [Project.of(make(home / "code" / name, "pyproject.toml")).database for name in names]
    assert len(set(found)) == len(names)
    assert found[0].startswith("shop_")
    for name in found:
        assert name.encode().replace(b"_", b"a").isalnum()
        assert len(name) < 63


def test_the_home_folder_is_not_a_project(home):
    """
    Files for settings, kept in git, would make one project of everything in it.
    """
    make(home, ".git")
    lonely = make(home / "lonely")
    assert Project.of(lonely).folder == lonely.resolve()
    assert Project.of(home).folder == home.resolve()


def test_a_link_leads_to_the_same_project(home):
    """
    What counts is where the folder is.
    """
    shop = make(home / "shop", "pyproject.toml")
    (home / "link").symlink_to(shop)
    assert Project.of(home / "link") == Project.of(shop)

"""Releases that are still to come: the library with more migrations than it has."""

from pathlib import Path

import pytest

from forebay.sql import loader


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make the library that of a later release, which adds migrations: pairs of name and text.

    Called again it adds more; without any it is the present library once more.
    """
    ours = loader._files()
    added: list[Path] = []

    def make(*migrations: tuple[str, str]):
        if not migrations:
            added.clear()
        for name, text in migrations:
            file = tmp_path / f"{len(ours_numbered) + len(added) + 1:04}_{name}.sql"
            file.write_text(text, encoding="utf-8")
            added.append(file)
        loader.migrations.cache_clear()
        return list(loader.migrations()[len(ours_numbered) :])

    ours_numbered = loader.migrations()
    monkeypatch.setattr(loader, "_files", lambda: [*ours, *added])
    yield make
    added.clear()
    loader.migrations.cache_clear()

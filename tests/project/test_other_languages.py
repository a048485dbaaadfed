"""The page about workers in other languages shows the files that the tests run."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


WORKERS = "workers-in-other-languages.md"


@pytest.mark.parametrize(
    ("page", "name"),
    [(WORKERS, "worker.cjs"), (WORKERS, "worker.sh"), ("notices.md", "wait.cjs")],
)
def test_the_page_shows_the_example(page, name):
    """Copied from the page, a program is the one that is tested."""
    page = (ROOT / "docs/howto" / page).read_text(encoding="utf-8")
    source = (ROOT / "examples/other_languages" / name).read_text(encoding="utf-8")
    assert source.rstrip() in page

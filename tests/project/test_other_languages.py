"""The page about workers in other languages shows the files that the tests run."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["worker.cjs", "worker.sh"])
def test_the_page_shows_the_example(name):
    """Copied from the page, a worker is the one that is tested."""
    page = (ROOT / "docs/howto/workers-in-other-languages.md").read_text(encoding="utf-8")
    source = (ROOT / "examples/other_languages" / name).read_text(encoding="utf-8")
    assert source.rstrip() in page

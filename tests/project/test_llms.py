"""llms.txt: the pages of the site, for programs that read documentation."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="building the site needs the extra docs")
site_hook = pytest.importorskip("tools.site_hook", reason="building needs the extra docs")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINE = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\): (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def text() -> str:
    """The file as the site has it."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return site_hook.llms(config["site_name"], config["site_description"], config["nav"])


def test_every_guide_is_listed_once_with_its_first_sentence(text):
    """
    A program finds each page that people find, by what the page says first. Decision records are
    listed by their index.
    """
    listed = [address for _, address, _ in LINE.findall(text)]
    pages = {
        page.relative_to(DOCS).with_suffix(".html").as_posix().replace("README", "index")
        for page in DOCS.rglob("*.md")
        if not page.relative_to(DOCS).as_posix().startswith("decisions/0")
    }
    made = {"changelog.html", "contributing.html", "reference/api.html"}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages | made
    short = [line for line in LINE.findall(text) if len(line[2].split()) < 3]
    assert short == []


def test_the_form_is_that_of_llmstxt_org(text):
    """
    A title, a quoted summary, then sections of links; what may be left out is called Optional.
    """
    lines = [line for line in text.splitlines() if line]
    assert lines[0] == "# Forebay"
    assert lines[1].startswith("> ")
    assert [line for line in lines[2:] if not line.startswith(("## ", "- ["))] == []
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections[0] == "Start"
    assert sections[-1] == "Optional"
    assert len(sections) == len(set(sections))


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("# A\n\nRun it. Then look.\n", "Run it."),
        ("# A\n\n<!-- file: x -->\n```python\nBig = 1\n```\n\nThe [job](a.md) `x`\nis done.\n",
         "The job x is done."),
        ("# A\n\n- an item\n\n| a | b |\n\n## More\n\nWhat is 1.5 times two? Three.\n",
         "What is 1.5 times two?"),
        ("# A\n\nIt takes:\n\n- a\n", "It takes"),
    ],
)  # fmt: skip
def test_the_first_sentence_is_prose_without_marks(page, sentence):
    """
    Not a heading, a block of code, an item or a table; links and code become words.
    """
    assert site_hook.first_sentence(page) == sentence

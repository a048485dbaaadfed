"""What the documentation says is not there: a feature that comes later makes it untrue.

Each such sentence stands in absences.txt, below the name of its page, since somebody has read it
and found it true. A new one is read, and added by

    .venv/bin/python -m tests.project.test_absence

which also drops what no page says any more. Decision records are left out: each tells of its day.
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
REVIEWED = Path(__file__).with_name("absences.txt")
ABSENCE = re.compile(
    r"\b(?:no option|(?:has|have) no|there (?:is|are) no|not yet|not (?:there|supported|possible)"
    r"|(?:does|do) not support|cannot)\b",
    re.IGNORECASE,
)
#: The end of a sentence, of an item, of a cell of a table.
END = re.compile(r"(?<=[.:;?!])\s+|\s\|\s?|\n\s*(?=[-*|#]|\d+\. )|\n{2,}")
#: A block of code. Output of commands is kept, help texts too.
BLOCK = re.compile(r"^ *(```+)(\w*).*?^ *\1 *$", re.MULTILINE | re.DOTALL)


def pages() -> Iterator[Path]:
    """The pages that users read. Help texts of commands are in docs/reference/cli.md."""
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"))
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.parent.name != "decisions":
            yield page


def absences(text: str) -> list[str]:
    """Return the sentences that say that something is not there."""
    prose = BLOCK.sub(lambda block: block[0] if block[2] in {"text", "console"} else "", text)
    sentences = (" ".join(each.split()) for each in END.split(prose))
    return list(dict.fromkeys(each for each in sentences if ABSENCE.search(each)))


def found() -> dict[str, list[str]]:
    """Return these sentences by page."""
    each = {
        page.relative_to(ROOT).as_posix(): absences(page.read_text(encoding="utf-8"))
        for page in pages()
    }
    return {name: sentences for name, sentences in each.items() if sentences}


def written(by_page: dict[str, list[str]]) -> str:
    """Return the list as the file has it."""
    return "\n".join(
        "\n".join([name, *(f"    {each}" for each in sentences), ""])
        for name, sentences in by_page.items()
    )


def reviewed() -> dict[str, list[str]]:
    """Return the list that the file has."""
    by_page: dict[str, list[str]] = {}
    name = ""
    for line in REVIEWED.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            by_page[name].append(line.strip())
        elif line:
            name = line
            by_page[name] = []
    return by_page


def test_what_is_said_not_to_be_there_was_reviewed():
    """
    Is each of these true today? Then run this module, which adds them; else change the page.
    """
    known = reviewed()
    new = [
        f"{name}: {each}"
        for name, sentences in found().items()
        for each in sentences
        if each not in known.get(name, [])
    ]
    assert not new, "\n".join(new)


def test_no_reviewed_sentence_is_left_over():
    """
    What no page says any more would let it come back unread.
    """
    now = found()
    assert [
        f"{name}: {each}"
        for name, sentences in reviewed().items()
        for each in sentences
        if each not in now.get(name, [])
    ] == []


def test_a_sentence_of_absence_is_seen_wherever_it_stands():
    """
    In a paragraph over two lines, an item, a cell; not in code.
    """
    text = (
        "It works. There is\nno console: use lists. Fine.\n\n- The option has\n  no default.\n"
        "- all is there\n\n| a | does not support b |\n\n```python\n# not yet\n```\n"
    )
    assert absences(text) == [
        "There is no console:",
        "- The option has no default.",
        "does not support b",
    ]


if __name__ == "__main__":
    REVIEWED.write_text(written(found()), encoding="utf-8")

"""Write the entries of docs/reference/sql.md, from the source of the schema.

A part stands between the lines ``<!-- functions: enqueue unique operate/cancel -->``, which names
files and folders of ``schema/functions`` in the order of the page, and ``<!-- end of functions
-->``. ``protocol:`` instead of ``functions:`` takes the functions whose name ends in ``_v1``. All
other text of the page is written by hand and kept.

The entry of a function has its signature, the comment above it, and the roles that ``-- grant:``
names. In the comment:

``Parameters:``, ``Columns:``, ``Answers:`` and the like, alone on a line
    The lines below, indented by two, become a table: a name, at least two spaces, its meaning; or
    the meaning in the next lines, indented further.
``Example:``, alone on a line
    The lines below become a block of SQL. The tests run it.
``Errors:``, ``Transaction:``, ``Locks:``
    Points at the end of the entry. Without a line, errors are ``none.``, and the transaction is
    ``the caller's.``
``See:``
    Pages of the documentation, such as ``docs/howto/limits.md#order-and-limits``. The entry has
    links with their headings.
``Inside:``
    Invariants and other things for those who change the function. They and all lines below are not
    on the page.

``forebay.job()`` and SQLSTATEs are code on the page, and the names of functions are links.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay.sql.composer import with_fields

ROOT: Final = Path(__file__).parents[1]
FUNCTIONS: Final = ROOT / "src" / "forebay" / "sql" / "schema" / "functions"
TARGET: Final = ROOT / "docs" / "reference" / "sql.md"

_PART: Final = re.compile(
    r"^(<!-- (functions|protocol): (.+?) -->\n).*?^(<!-- end of functions -->\n)",
    re.MULTILINE | re.DOTALL,
)
_FUNCTION: Final = re.compile(
    r"(?P<comment>(?:^--.*\n)*)^create function forebay\.(?P<name>[a-z]\w*)"
    r"(?P<signature>\((?:.*\n)*?)language (?P<language>.*)\n",
    re.MULTILINE,
)
_GRANT: Final = re.compile(r"^-- grant: (.+)$", re.MULTILINE)
_FIELD: Final = re.compile(r"(Errors|Transaction|Locks|See): (.+)")
_LABEL: Final = re.compile(r"([A-Z][a-z ]+):")
_DIRECTIVE: Final = re.compile(r"(pages|planner|include|grant): ")
_CODE: Final = re.compile(
    r"""
    `[^`]+`                                                   # code already
    | (?:\bforebay\.[a-z]\w*|\b[a-z]\w*(?=\(\)))(?:\(\))?      # a function, a table
    | \b(?:JQ\d{3}|55P03|23502|40001|53400|54000)\b           # an SQLSTATE
    """,
    re.VERBOSE,
)
_NAMES: Final = re.compile(r"[\w. ]+(, [\w. ]+)*")
_WIDTH: Final = 100


@dataclass(frozen=True)
class Function:
    """A function that others may call.

    Attributes:
        name: without the schema.
        heading: the name, with its first parameter if the file has several functions of the name.
        signature: parameters and result, as in the source.
        language: the language with the volatility.
        comment: the lines above it, without the dashes.
        roles: who may call it; empty: the owner only.
        file: where it is.
    """

    name: str
    heading: str
    signature: str
    language: str
    comment: list[str]
    roles: list[str]
    file: Path

    @property
    def is_protocol(self) -> bool:
        """Whether it is for drivers, and not for people."""
        return self.name.endswith("_v1")


def main() -> None:
    """Write the page."""
    TARGET.write_text(page(TARGET.read_text(encoding="utf-8")), encoding="utf-8")


def page(text: str) -> str:
    """Return the page with its generated parts made anew.

    Raises:
        ValueError: a function has no place on the page, or its comment has an unknown form.
    """
    left = [each for file in sorted(FUNCTIONS.rglob("*.sql")) for each in functions(file)]
    anchors: dict[str, str] = {}
    for each in left:
        anchors.setdefault(each.name, anchor(each.heading))

    def part(found: re.Match[str]) -> str:
        begin, sort, paths, end = found.groups()
        chosen = []
        for path in paths.split():
            here = [
                each
                for each in left
                if each.is_protocol == (sort == "protocol") and is_below(each.file, path)
            ]
            if not here:
                raise ValueError(f"{begin.strip()}: {path} has no such function that is left")
            chosen += here
            left[:] = [each for each in left if each not in here]
        return begin + "".join(entry(each, anchors) for each in chosen) + "\n" + end

    text = _PART.sub(part, text)
    if left:
        raise ValueError(f"no part of {TARGET.name} has {', '.join(each.name for each in left)}")
    return text


def is_below(file: Path, path: str) -> bool:
    """Return whether a file is the one that a path names, or in that folder."""
    return FUNCTIONS / path in [file.with_suffix(""), *file.parents]


def functions(file: Path) -> Iterator[Function]:
    """Yield the functions of a file that others may call."""
    text = with_fields(file.read_text(encoding="utf-8"))
    grant = _GRANT.search(text)
    roles = grant[1].split(", ") if grant and grant[1] != "none" else []
    here = list(_FUNCTION.finditer(text))
    names = [found["name"] for found in here]
    for found in here:
        name = found["name"]
        first = re.match(r"\(\s*(\w+)", found["signature"])
        heading = (
            f"forebay.{name}({first[1]})" if names.count(name) > 1 and first else f"forebay.{name}"
        )
        lines = [line[3:].rstrip() for line in found["comment"].splitlines()]
        comment = [line for line in lines if not _DIRECTIVE.match(line)]
        yield Function(name, heading, found["signature"], found["language"], comment, roles, file)


def entry(function: Function, anchors: Mapping[str, str]) -> str:
    """Return the entry of one function."""
    blocks, fields = parsed(function)
    reads = "" if "volatile" in function.language else "; reads only"
    points = {
        "Errors": fields.get("Errors", "none."),
        "Transaction": fields.get("Transaction", f"the caller's{reads}."),
        "Locks": fields.get("Locks"),
        "Roles": ", ".join(ordered(function.roles)) or "the owner only",
        "See": links(fields["See"]) if "See" in fields else None,
    }
    texts = [block(each) for each in blocks]
    texts.append("\n".join(f"- {name}: {text}" for name, text in points.items() if text))
    shown = [text if text.startswith("```") else marked(text, function, anchors) for text in texts]
    head = f"### {function.heading}\n\n```text\n{signature(function)}\n```"
    return "\n" + "\n\n".join([head, *shown]) + "\n"


def ordered(roles: list[str]) -> list[str]:
    """Return roles in the order in which the page describes them."""
    return [role for role in ("producer", "worker", "operator", "reader") if role in roles]


def parsed(function: Function) -> tuple[list[list[str]], dict[str, str]]:
    """Return the blocks of a comment, and its fields."""
    blocks: list[list[str]] = [[]]
    fields: dict[str, str] = {}
    name = None  # of the field that goes on
    for line in function.comment:
        field, label = _FIELD.match(line), _LABEL.fullmatch(line)
        if line.startswith("Inside:"):
            break
        if field:
            name, fields[field[1]] = field[1], field[2]
        elif name and line.startswith("  "):
            fields[name] += " " + line.strip()
        elif not line or label:
            name = None
            blocks.append([line] if label else [])
        elif name:
            raise ValueError(f"{function.file}: {function.name}: {line!r} is not a part of {name}")
        else:
            blocks[-1].append(line)
    blocks = [lines for lines in blocks if lines]
    if not blocks:
        raise ValueError(f"{function.file}: {function.name} has no comment that says what it does")
    return blocks, fields


def block(lines: list[str]) -> str:
    """Return a block of a comment as Markdown: a paragraph, a table or an example."""
    label = _LABEL.fullmatch(lines[0])
    if not label:
        return "\n".join(lines)
    if label[1] == "Example":
        return f"```sql\n{textwrap.dedent(chr(10).join(lines[1:]))}\n```"
    rows: list[list[str]] = []
    for line in lines[1:]:
        if not line.startswith("   "):
            rows.append(re.split(r"\s{2,}", line.strip(), maxsplit=1))
        else:
            rows[-1] = [rows[-1][0], " ".join([*rows[-1][1:], line.strip()])]
    # The plural of status is statuses.
    one = re.sub(r"(?<=us)es$|s$", "", label[1].lower())
    head = f"| {one} | meaning |\n|---|---|"
    return "\n".join([head, *(f"| {names(row[0])} | {cell(row[1])} |" for row in rows)])


def names(text: str) -> str:
    """Return the names of a row as code."""
    parts = text.split(", ") if _NAMES.fullmatch(text) else [text]
    return ", ".join(f"`{part}`" for part in parts)


def cell(text: str) -> str:
    """Return a text for a table."""
    return text.replace("|", "\\|")


def marked(text: str, function: Function, anchors: Mapping[str, str]) -> str:
    """Return a text with SQLSTATEs and functions as code, other functions as links."""

    def code(found: re.Match[str]) -> str:
        name = found[0].removeprefix("forebay.").removesuffix("()")
        if found[0].startswith("`"):
            return found[0]
        if name == function.name or name not in anchors:
            return f"`{found[0]}`"
        return f"[`{found[0]}`](#{anchors[name]})"

    return _CODE.sub(code, text)


def anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def links(text: str) -> str:
    """Return links to pages of the documentation, with their headings."""
    return ", ".join(link(path) for path in text.rstrip(".").split(", "))


def link(path: str) -> str:
    """Return a link to a page, or to the part of it that an anchor names.

    Raises:
        ValueError: there is none.
    """
    file, _, part = path.partition("#")
    text = (ROOT / file).read_text(encoding="utf-8")
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        if not part or anchor(heading) == part:
            target = file.removeprefix("docs/") + (f"#{part}" if part else "")
            return f"[{heading.replace('`', '')}](../{target})"
    raise ValueError(f"{path}: no such heading")


def signature(function: Function) -> str:
    """Return parameters and result, in lines of at most a hundred columns."""
    text = re.sub(r"\s+", " ", function.signature).strip()
    text = text.replace("( ", "(").replace(" )", ")").replace("returns table (", "returns table(")
    if " returns " not in text:
        results = re.findall(r"\b(?:in)?out \w+ ([^,)]+)", text)
        text += f" returns {results[0] if len(results) == 1 else 'record'}"
    text = f"forebay.{function.name}{text}"
    if len(text) <= _WIDTH:
        return text
    call, returns, table = text.partition(" returns table(")
    parts = [call, f"   {returns}{table}"] if table else [text]
    lines = [[part] if len(part) <= _WIDTH else filled(part) for part in parts]
    return "\n".join(line for part in lines for line in part)


def filled(text: str) -> list[str]:
    """Return a list in parentheses in several lines, each broken at a comma."""
    begin, parenthesis, rest = text.partition("(")
    parts, end, result = rest.rpartition(")")
    indent = "        " if begin.startswith(" ") else "    "
    items = re.sub(r"(?<!,) ", "\0", parts) + end + result.replace(" ", "\0")
    lines = textwrap.wrap(
        items,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [begin + parenthesis, *(line.replace("\0", " ") for line in lines)]


if __name__ == "__main__":
    sys.exit(main())

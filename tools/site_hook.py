"""What the documentation site needs beyond MkDocs; `hooks` in mkdocs.yml names this file.

- The pages are read on GitHub, too, so they link to files of the repository outside `docs`. On the
  site these links lead to the repository; `CHANGELOG.md` and `CONTRIBUTING.md` become pages.
- Comments that steer the test of code blocks are left out, except for the name of a file, which
  becomes the title of its block.
- The page `reference/api.md` is made from the docstrings of the public names.
- The search finds guides before design pages and decisions, and by words that people look for:
  those of Celery in the table `Words` of `coming-from/index.md` are tags of the guides that their
  rows link to, and `_ASKED` has those that many pages mention and one answers.
- The address of a page that was moved leads to its new one.
- The home page, `index.md`, has a template in `tools/site`. Its plots become a part of the page, so
  that they follow the palette. A picture `NAME.png` that has a `NAME-dark.png` beside it changes
  with the palette on every page.
- `llms.txt` lists the pages for programs that read documentation (https://llmstxt.org): the
  sections of the navigation, and the first sentence of each page.
- Each link to another server is checked for its form, and each list for the empty line that
  Markdown wants before it: problems are warnings, which end the build.
"""

import ast
import functools
import logging
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parents[1]
_DOCS = _ROOT / "docs"
_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
#: Where a page was, and where it is.
_MOVED = {"coming-from.html": "coming-from/index.html"}
_log = logging.getLogger("mkdocs.hooks.site")

#: How much a page counts in the search, by the beginning of its address; 1 where none fits.
_BOOSTS = {
    "howto/": 4.0,
    "tutorial/": 4.0,
    "coming-from": 2.0,
    "faq": 2.0,
    "benchmarks": 0.2,
    "changelog": 0.2,
    "contributing": 0.2,
    "decisions/": 0.1,
    "design/": 0.1,
    "guards": 0.1,
    "what-we-got-wrong": 0.1,
}

#: Words that many pages mention, by the page that answers. They are its tags in the search.
_ASKED = {
    "howto/deployment.md": ["docker", "kubernetes"],
    "howto/on-call.md": ["on call", "runbook"],
    "howto/troubleshooting.md": ["too many connections", "frozen worker"],
}

_FENCE = re.compile(r"(^[ ]*(?P<fence>```+).*?^[ ]*(?P=fence)[ ]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s]+)(?=\))")
_FILE = re.compile(
    r"^<!-- file: (?P<name>\S+) -->\n+(?P<fence>```+)(?P<language>\w+)", re.MULTILINE
)
_PICTURE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<path>[^)\s]+\.png)\)")
_PLOT = re.compile(r"!\[[^\]]*\]\((?P<path>plots/held-\w+\.svg)\)")
_COMMENT = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)
_LIST = re.compile(r"^(?![ ]*(?:[-*|>#]|\d+\.)|[ ]{2}|$).*\n(?=(?:- |1\. ))", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give the templates what the head and the foot of each page show."""
    config.extra["release"] = _project()["version"]
    config.extra["changelog"] = _PAGES["CHANGELOG.md"].replace(".md", ".html")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs`."""
    for source, page in _PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(_ROOT / source)))
    files.append(File.generated(config, "reference/api.md", content=_api()))
    for old, new in _MOVED.items():
        files.append(File.generated(config, old, content=_redirect(new)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - called by MkDocs
    """Return the page as the site shows it."""
    source = page.file.src_uri
    if source == "index.md":
        page.meta.update(template="home.html", hide=["navigation", "toc"])
    for beginning, boost in _BOOSTS.items():
        if source.startswith(beginning):
            page.meta["search"] = {"boost": boost}
    if tags := [*_words().get(source, []), *_ASKED.get(source, [])]:
        page.meta["tags"] = tags
    markdown = _FILE.sub(r'\g<fence>\g<language> title="\g<name>"', markdown)
    # What looks like a link or a comment in a code block is code.
    parts = _FENCE.split(markdown)
    for index in range(0, len(parts), 3):
        text = _COMMENT.sub("", parts[index])
        if source == "index.md":
            text = _PLOT.sub(lambda found: _inline(found["path"]), text)
        text = _PICTURE.sub(lambda found: _both(found, source), text)
        for line in _LIST.findall(text):
            _log.warning("%s: no empty line before the list after %r", source, line.strip())
        parts[index] = _LINK.sub(lambda found: _address(found["target"], source), text)
    del parts[2::3]  # the fences themselves
    return "".join(parts)


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt` beside the pages."""
    text = llms(str(config.site_name), str(config.site_description), config.nav or [])
    (Path(config.site_dir) / "llms.txt").write_text(text, encoding="utf-8")


def llms(name: str, description: str, nav: list[Any]) -> str:
    """Return the list of the pages for programs, from the navigation of mkdocs.yml.

    A heading is a section and its subsection. The internals are called optional, as llmstxt.org
    calls what may be left out.
    """
    sections: dict[str, list[str]] = {}
    for path, page in _pages(nav):
        heading = "Optional" if path[0] == "Internals" else ": ".join(path)
        source = next((each for each, made in _PAGES.items() if made == page), f"docs/{page}")
        text = _api() if page == "reference/api.md" else (_ROOT / source).read_text("utf-8")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        address = str(PurePosixPath(page).with_suffix(".html")).replace("README", "index")
        line = f"- [{title[1] if title else page}]({address}): {first_sentence(text)}"
        sections.setdefault(heading, []).append(line)
    parts = [f"# {name}", f"> {description}"]
    parts += ["\n".join([f"## {heading}", "", *lines]) for heading, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def _pages(nav: list[Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each page of the navigation, and the names of the sections that it is in."""
    for entry in nav:
        for title, inside in entry.items() if isinstance(entry, dict) else [("", entry)]:
            if isinstance(inside, list):
                yield from _pages(inside, (*path, title))
            else:
                yield path, inside


def first_sentence(text: str) -> str:
    """Return the first sentence of a page, without its links and other marks."""
    for paragraph in re.split(r"\n{2,}", _COMMENT.sub("", _FENCE.sub("", text))):
        if re.match(r"[A-Z\[`*]", paragraph):
            plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            plain = re.sub(r"[*`]", "", plain)
            return re.split(r"(?<=[.!?:])(?: (?=[A-Z])|$)", plain)[0].rstrip(":")
    return ""


def _inline(path: str) -> str:
    """Return a plot as a part of the page, whose colours are then those of `site.css`."""
    text = (_DOCS / path).read_text(encoding="utf-8")
    return re.sub(r"<style>.*?</style>|\n", "", text, flags=re.DOTALL)


def _both(found: re.Match[str], source: str) -> str:
    """Return a picture with its form for the dark palette, if there is one."""
    dark = found["path"].replace(".png", "-dark.png")
    if not ((_DOCS / source).parent / dark).exists():
        return found[0]
    return f"![{found['text']}]({found['path']}#only-light)![{found['text']}]({dark}#only-dark)"


def _redirect(address: str) -> str:
    """Return a page that leads to another one, from the top of the site."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Moved</title>'
        f'<link rel="canonical" href="{address}"><meta name="robots" content="noindex">'
        f'<meta http-equiv="refresh" content="0; url={address}">'
        f'<a href="{address}">This page has moved.</a></html>'
    )


@functools.cache
def _words() -> dict[str, list[str]]:
    """Return the words of Celery by the page that explains what is used instead."""
    text = (_DOCS / "coming-from/index.md").read_text(encoding="utf-8").partition("\n## Words\n")[2]
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = line.split(" | ")
        if link := _LINK.search(cells[-1]):
            page = link["target"].partition("#")[0].removeprefix("../")
            found.setdefault(page, []).extend(re.findall(r"`(\w+)`", cells[0]))
    return found


def _address(target: str, source: str) -> str:
    """Return where a link of a page leads on the site."""
    if "://" in target or target.startswith("mailto:"):
        parts = urlsplit(target)
        if (
            parts.scheme not in {"http", "https"}
            or "." not in parts.netloc
            or parts.query.count("?")
        ):
            _log.warning("%s: %s is not an address", source, target)
        return target
    path, mark, anchor = target.partition("#")
    if not path:
        return target
    folder = _DOCS / PurePosixPath(source).parent if source not in _PAGES.values() else _ROOT
    file = (folder / path).resolve()
    if not file.is_relative_to(_ROOT) or not file.exists():
        _log.warning("%s: the link to %s leads to no file", source, target)
        return target
    here = PurePosixPath(source).parent
    name = file.relative_to(_ROOT).as_posix()
    if name in _PAGES:
        found = _PAGES[name]
    elif file.is_relative_to(_DOCS) and file.is_file():
        found = file.relative_to(_DOCS).as_posix()
    else:
        kind = "tree" if file.is_dir() else "blob"
        return f"{_repository()}/{kind}/main/{name}{mark}{anchor}"
    up = "../" * len(here.parts)
    return f"{up}{found}{mark}{anchor}"


@functools.cache
def _project() -> dict[str, Any]:
    text = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["project"])


def _repository() -> str:
    return str(_project()["urls"]["Repository"]).rstrip("/")


def _api() -> str:
    """Return the page of the public names: each `::: name` becomes what its docstring says."""
    lines = [
        "# Python, from the docstrings",
        "",
        (
            "Signatures and docstrings of all public names, made from the code. "
            "[Python](python.md) has the same names with"
        ),
        "tables and examples.",
    ]
    for module in ("forebay", "forebay.mirror", "forebay.testing"):
        lines += ["", f"## {module} {{ #module-{module.replace('.', '-')} }}", ""]
        lines += [
            f"::: {module}.{name}\n    options:\n      heading_level: 3\n"
            for name in _public(module)
        ]
    return "\n".join(lines)


def _public(module: str) -> list[str]:
    """Return `__all__` of a module, without importing it."""
    path = _ROOT / "src" / module.replace(".", "/") / "__init__.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == "__all__" for each in targets):
            return sorted(ast.literal_eval(node.value))
    raise ValueError(f"{module} has no __all__")

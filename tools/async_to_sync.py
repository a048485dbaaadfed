"""Write the synchronous form of each asynchronous module.

The tool rewrites the source token by token: it removes ``async`` and ``await``, and renames what
begins with ``Async`` and the names in a short table, in code and in docstrings. Layout and comments
stay. Other strings do not change.

    python tools/async_to_sync.py            write the generated files
    python tools/async_to_sync.py --check    exit with 1 when one of them is out of date
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SOURCE = "src/forebay/client/_async"
TARGET = "src/forebay/client/_sync"

#: Generated file by source.
FILES = {
    f"{SOURCE}/{path.name}": f"{TARGET}/{path.name}"
    for path in sorted((ROOT / SOURCE).glob("*.py"))
}

BANNER = "# Generated from {source} by tools/async_to_sync.py. Do not edit.\n"

#: Names that only one of the two forms has. Every other name that begins with Async loses the word.
NAMES = {
    "AsyncConnection": "SyncConnection",
    "_async": "_sync",
    "run_async": "run",
    "own_transaction_async": "own_transaction",
    "pause_async": "pause",
    "run_kept_async": "run_kept",
    "run_own_async": "run_own",
    "await_own_async": "await_own",
    "watch_async": "watch",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "abackfill": "backfill",
}

#: More replacements in docstrings.
WORDS = {
    "asynchronous client": "synchronous client",
    "not an asynchronous connection": "not a synchronous connection",
    " tools/async_to_sync.py generates ``_sync`` from this folder.": "",
}

_DROPPED = {"async", "await"}


def to_sync(source: str) -> str:
    """Return the synchronous form of a module's text."""
    edits: list[tuple[int, int, str]] = []
    starts = _line_starts(source)
    previous = tokenize.INDENT
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        begin = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        if token.type == tokenize.NAME and token.string in _DROPPED:
            # The blank after the word is removed too.
            edits.append((begin, end + 1, ""))
        elif token.type == tokenize.NAME:
            edits.append((begin, end, _renamed(token.string)))
        elif token.type == tokenize.STRING and previous in (
            tokenize.INDENT,
            tokenize.NEWLINE,
            tokenize.NL,
            tokenize.ENCODING,
        ):
            edits.append((begin, end, _reworded(token.string)))
        if token.type != tokenize.COMMENT:
            previous = token.type
    for begin, end, text in reversed(edits):
        source = source[:begin] + text + source[end:]
    return source


def generated(source: str, text: str) -> str:
    """Return the whole generated file for a source path and its text, formatted."""
    banner = BANNER.format(source=source)
    # Shorter names let the formatter join lines; its settings are the project's.
    return _ruff("format", _ruff("check", banner + to_sync(text)))


def _ruff(verb: str, text: str) -> str:
    options = {"check": ["--select", "I", "--fix", "--quiet"], "format": ["--quiet"]}[verb]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", verb, *options, "--stdin-filename", "src/generated.py", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        sys.exit(
            f'{done.stderr.strip()}\nhint: ruff formats the result; it comes with the extra "test"'
        )
    return done.stdout


def _renamed(name: str) -> str:
    return NAMES.get(name) or re.sub(r"^Async(?=[A-Z])", "", name)


def _reworded(text: str) -> str:
    text = re.sub(r"\w+", lambda name: _renamed(name[0]), text)
    for words, others in WORDS.items():
        text = text.replace(words, others)
    return text


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def main(arguments: list[str]) -> int:
    """Write or check every generated file; return the exit code."""
    stale = []
    for source, target in FILES.items():
        wanted = generated(source, (ROOT / source).read_text(encoding="utf-8"))
        path = ROOT / target
        if path.exists() and path.read_text(encoding="utf-8") == wanted:
            continue
        stale.append(target)
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote {target}")
    if stale and "--check" in arguments:
        print(f"out of date: {', '.join(stale)}; run python tools/async_to_sync.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Split an SQL script into statements."""

from __future__ import annotations

import re
from typing import Final

#: Text in which a semicolon does not end a statement, or a semicolon. PostgreSQL manual, section
#: 4.1.
_TOKEN: Final = re.compile(
    r"""
      --[^\n]*
    | /\*
    | (?<![a-z0-9_$])e'(?:[^'\\]|\\.|'')*'
    | '(?:[^']|'')*'
    | "(?:[^"]|"")*"
    | (?<![a-z0-9_$])\$(?P<tag>[a-z_]\w*)?\$.*?\$(?P=tag)\$
    | (?<![a-z0-9_$])\$\$.*?\$\$
    | ;
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")


def split_statements(text: str) -> list[str]:
    r"""Return the statements of a script, each with the comments before it and without its
    semicolon.

    Semicolons within strings, names, comments and dollar-quoted bodies do not end a statement.
    Bodies written as ``begin atomic`` are not supported.

    >>> split_statements("select ';'; -- one; two\ndo $x$ begin; end $x$;")
    ["select ';'", '-- one; two\ndo $x$ begin; end $x$']
    """
    statements = []
    begin = at = 0
    is_empty = True
    while token := _TOKEN.search(text, at):
        is_empty = is_empty and not text[at : token.start()].strip()
        at = token.end()
        if token[0] == "/*":
            at = _end_of_comment(text, at)
        elif token[0] == ";":
            if not is_empty:
                statements.append(text[begin : token.start()].strip())
            begin, is_empty = at, True
        elif not token[0].startswith("--"):
            is_empty = False
    if not is_empty or text[at:].strip():
        statements.append(text[begin:].strip())
    return statements


def _end_of_comment(text: str, at: int) -> int:
    """Return the end of a comment whose opening mark precedes ``at``; comments may be nested."""
    depth = 1
    while depth and (mark := _COMMENT_MARK.search(text, at)):
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
    return at if depth == 0 else len(text)

"""The demo's application: one handler. Workers run it as ``forebay worker forebay.demo.app:app``.

It is an ordinary application. Only ``demo.effect`` is unusual: the table has no unique key, so that
an effect that was applied twice appears twice.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator

from forebay.app import App
from forebay.model.context import Context

app = App()

QUEUE = "documents"

#: Python 3.11.7's ``ast.parse`` sometimes fails in several threads at once: "SystemError: AST
#: constructor recursion depth mismatch". The job would be retried, which only takes longer.
_PARSER = threading.Lock()


@app.job(queue=QUEUE, transaction=True, timeout=60)
def extract_docstrings(ctx: Context, document_id: int) -> None:
    """Write the docstrings of a module as rows; they commit when the job completes."""
    row = ctx.conn.execute(
        "select source from demo.document where document_id = %s", [document_id]
    ).fetchone()
    # Without its document this job must not exist. Record it all the same, so that it is counted.
    found = list(docstrings(row[0])) if row else []
    with ctx.conn.cursor() as cursor:
        cursor.executemany(
            "insert into demo.docstring (document_id, name, line, text) values (%s, %s, %s, %s)",
            [(document_id, *docstring) for docstring in found],
        )
    ctx.conn.execute(
        "insert into demo.effect (document_id, job_id, attempt) values (%s, %s, %s)",
        [document_id, ctx.job.job_id, ctx.attempt],
    )


def docstrings(source: str) -> Iterator[tuple[str, int, str]]:
    r"""Yield name, line and text of every docstring; yield none if the source is not Python.

    >>> list(docstrings('def f():\n    "What f does."'))
    [('f', 1, 'What f does.')]
    """
    try:
        with _PARSER:
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", ""), getattr(node, "lineno", 1), text

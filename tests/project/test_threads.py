"""A future takes no StopIteration: who waits for it would wait without end."""

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src/forebay"

#: What gives a future the error of a function, and where it may stand.
ALLOWED = {
    "to_thread": {"in_threads.py"},
    "run_in_executor": set(),
    # Those with for_future(), and those of errors that no user's function raises.
    "set_exception": {
        "mirror/_loop_thread.py",
        "sinks/_support.py",
        "worker/ground/threads.py",
        "sending/_payloads.py",
        "sinks/nats.py",
        "worker/run/_step_store.py",
    },
}


def test_functions_in_threads_are_called_by_one_helper():
    """
    forebay.in_threads makes StopIteration an error that a future can have.
    """
    found = {name: set() for name in ALLOWED}
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in found:
                found[node.attr].add(path.relative_to(SOURCES).as_posix())
    assert found == ALLOWED

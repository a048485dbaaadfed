"""What decides does so from its arguments alone: import-linter forbids time and random, this
test the clocks without an import.
"""

import ast
from pathlib import Path

import forebay.policy
import forebay.watch

#: The modules of decisions: all of policy, and those of watch.
DECISIONS = [
    *Path(forebay.policy.__file__).parent.glob("**/*.py"),
    *(
        Path(forebay.watch.__file__).with_name(f"{name}.py")
        for name in ("explanation", "mirror_rules", "next_step", "rules", "top")
    ),
]

#: Methods of date, datetime and uuid that read a clock or draw a number.
READS = {"now", "utcnow", "today", "uuid1", "uuid4", "urandom"}


def test_no_policy_reads_a_clock_or_draws_a_number():
    """
    ``datetime.now`` needs no import of time: no name of that kind is called or passed on.
    """
    found = [
        f"{path.name}:{node.lineno} {node.attr}"
        for path in DECISIONS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in READS
    ]

    assert found == []

"""The event log: each act of an operator leaves an event, and the documentation names each act."""

import re
from importlib.resources import files
from pathlib import Path

FUNCTIONS = files("forebay.sql") / "schema" / "functions"
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "event-log.md"

#: Functions that are volatile, that operators may call, and that leave no event.
SILENT = {
    # They enqueue.
    "signal", "push_subject", "push_subjects", "upsert_subject", "upsert_subjects",
    # They read: what they call must see what was written before in the same statement.
    "endpoints", "explain_job", "key", "keys", "limits", "measurements", "metric_rows",
    "segment_held_by",
    "sample_mirror",
    # Steps of what workers, mirrors and upgrades do by themselves.
    "close_groups", "lock_subjects_for_upgrade", "record_audit", "record_repair",
    "record_upgrade", "upgrade_subject", "renew_counters_v1",
    # It tries a write, and rolls it back.
    "probe_write",
    # They write the event of the guard.
    "record_act", "record_outcome",
}  # fmt: skip


def sources() -> dict[str, tuple[bool, str]]:
    """Return for each function whether an operator may call it to write, and its body."""
    found = {}
    for folder in FUNCTIONS.iterdir():
        for file in folder.iterdir() if folder.is_dir() else ():
            if not file.name.endswith(".sql"):
                continue
            text = file.read_text()
            grants = re.search(r"^-- grant: (.*)", text, re.MULTILINE)
            is_operators = grants is not None and "operator" in grants[1]
            for name, head, body in re.findall(
                r"create function forebay\.(\w+)\((.*?)\$\$(.*?)\$\$;", text, re.DOTALL
            ):
                writes = is_operators and not name.startswith("_") and " volatile" in head
                found[name] = (writes, found.get(name, (False, ""))[1] + body)
    return found


def recorded(name: str, functions: dict[str, tuple[bool, str]], seen: set[str]) -> bool:
    """Return whether a function records an event, itself or by what it calls."""
    body = functions.get(name, (False, ""))[1]
    seen.add(name)
    calls = set(re.findall(r"forebay\.(\w+)\(", body))
    return "_record_event" in calls or any(
        recorded(call, functions, seen) for call in calls - seen if call in functions
    )


def test_each_act_of_an_operator_leaves_an_event():
    """A function that operators may call and that writes records one, or is listed with why not."""
    functions = sources()
    silent = {
        name
        for name, (writes, _) in functions.items()
        if writes and not recorded(name, functions, set())
    }
    assert silent == SILENT


def test_the_page_names_each_act():
    """Each act that a function records stands in the table of the page."""
    page = PAGE.read_text()
    acts = {
        act
        for _, body in sources().values()
        for act in re.findall(r"_record_event\(\s*'([a-z_.]+[a-z])'", body)
    }
    assert len(acts) > 30
    assert sorted(act for act in acts if f"`{act}`" not in page) == []

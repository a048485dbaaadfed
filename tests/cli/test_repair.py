"""forebay migrate --repair: functions and grants that somebody changed are as they were."""

import pytest

from forebay.sql import latest_version
from tests.support.engine import enqueue, one

#: What somebody did, and the object that the repair names.
MENDED = {
    "drop function forebay.depth": "function depth(",
    "alter function forebay.claim_v1 reset jit": "function claim_v1(",
    "drop function forebay._read_1": "function _read_#(",
    "grant select on forebay.log to public": "grant to public on log",
    "drop function forebay._grant": "function _grant(",
    """drop function forebay.depth; create function forebay.depth(q text) returns text
    language sql as $$ select q $$""": "function depth(",
    """create or replace function forebay._wakeup(p_queue text) returns regclass
    language sql stable as $$ select 'forebay.wakeup_0'::regclass $$""": "function _wakeup(",
}
LEFT = {
    "drop index forebay.lane_by_queue": "missing: index lane.lane_by_queue",
    "alter sequence forebay.log_seq cache 20": "sequence log_seq",
    "create index mine on forebay.failure (worker)": "index failure.mine was added",
}


def differences(forebay) -> list[dict]:
    found = forebay("doctor", "--json").json
    return [each for each in found["findings"] if each["check"] == "objects"]


@pytest.mark.slow
@pytest.mark.parametrize("change", MENDED)
def test_functions_and_grants_are_mended(forebay, conn, change):
    """A dry run lists the same and changes nothing. Jobs stay; producers may call what is back."""
    job_id = enqueue(conn)
    conn.execute(change)
    damaged = differences(forebay)
    plan = forebay("migrate", "--repair", "--dry-run", "--json").json
    assert any(name.startswith(MENDED[change]) for name in plan["mended"]), plan
    assert differences(forebay) == damaged
    done = forebay("migrate", "--repair", "--json").json
    assert done == {"dry_run": False, "mended": plan["mended"], "left": []}
    assert [each["level"] for each in differences(forebay)] == ["ok"]
    assert one(conn, "select state from forebay.job(%s)", job_id) == "ready"
    assert one(
        conn, "select has_function_privilege('forebay_reader', 'forebay.depth(text)', 'execute')"
    )
    assert forebay("migrate", "--repair").out.startswith("schema forebay: mended 0 objects")


@pytest.mark.slow
@pytest.mark.parametrize("change", LEFT)
def test_tables_and_what_hangs_on_them_are_left(forebay, conn, change):
    """The repair names what it leaves; an error that is left is its exit code."""
    conn.execute(change)
    conn.execute("drop function forebay.depth")
    answer = forebay("migrate", "--repair")
    assert answer.code == (0 if "was added" in LEFT[change] else 1)
    assert "mended function depth(" in answer.out
    assert LEFT[change] in answer.out
    assert "a repair changes no table" in answer.out


def test_another_version_is_not_repaired(forebay, conn):
    """The functions of a later version are not those of this library."""
    conn.execute(
        "insert into forebay.schema_migration (version, name, checksum) "
        "values (%s, 'later', repeat('0', 64))",
        [latest_version() + 1],
    )
    conn.execute("drop function forebay.depth")
    refused = forebay("migrate", "--repair")
    assert (refused.code, "too new" in refused.err) == (3, True)

"""forebay queues show."""

import pytest

from tests.support.engine import one


@pytest.mark.parametrize("width", [80])
def test_the_screen_has_eighty_columns_and_twenty_four_lines(command, database, conn, width):
    """Also with everything set, and many kinds and groups."""
    one(conn, "select forebay.limit_queue('mail', max_waiting => 9, rate => 2.5, key_rate => 1)")
    one(conn, "select forebay.set_max_attempts('mail', 3)")
    for nr in range(7):
        one(conn, f"select forebay.open_group('mail', 'group{nr}')")
        conn.execute(f"select forebay.record_kinds_v1('w', '{{kind{nr}}}', '{{mail}}')")
    out = command("queues", "show", "mail", "--dsn", database).out
    lines = out.splitlines()
    assert max(map(len, lines)) <= width, out
    assert len(lines) <= 23, out
    assert "2.5 starts per second" in out
    shown = command("queues", "show", "mail", "--json", "--dsn", database).json
    assert {"part", "setting", "value", "source"} <= shown[0].keys()
    assert "[20]" in command("queues", "show", "other", "--dsn", database).out

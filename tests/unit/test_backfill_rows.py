"""Which rows: what becomes SQL, and what never does."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest

from forebay import Rows
from forebay.errors import InvalidJob
from forebay.ops.backfill import backfill_of, begin, next_chunk


def template(rows):
    return rows.select.template


def values(rows):
    return rows.select.values


class Colour(Enum):
    RED = "red"


def test_conditions_of_a_table_all_hold_and_values_have_places():
    """
    Ids, equal values, bounds and any condition; names are quoted, values are not in the text.
    """
    rows = Rows(
        "shop.Page",
        {"page_id": "id", "title": "Title"},
        ids=[1, 2],
        equal={"site": 7, "owner": None, "kind": ["a", "b"]},
        between={"at": (date(2026, 1, 1), None), "n": (1, 2)},
        where="words > %(least)s and words <> %(least)s and title like 'a%%'",
        params={"least": 5},
    )
    assert template(rows) == (
        'select "id" as "page_id", "Title" as "title" from "shop"."Page" where "id" = '
        'any(%1$L) and "site" = %2$L'
        ' and "owner" is null and "kind" = any(%3$L) and "at" >= %4$L and "n" >= %5$L and '
        '"n" <= %6$L'
        " and (words > %7$L and words <> %7$L and title like 'a%%'\n)"
    )
    assert values(rows) == ['{"1","2"}', "7", '{"a","b"}', "2026-01-01", "1", "2", "5"]
    assert rows.select.key == "page_id"
    assert repr(rows) == "<rows of shop.Page>"


def test_without_values_a_text_is_taken_as_it_is():
    """
    As with psycopg: a % is doubled only where values are given.
    """
    assert template(Rows.query("select 5 % 2 as n")) == "select 5 %% 2 as n"
    assert template(Rows.query("select 5 %% 2 as n", {})) == "select 5 %% 2 as n"
    assert template(Rows("page", where="n % 2 = 0")).endswith("(n %% 2 = 0\n)")
    assert template(Rows('pa"ge%')) == 'select "id" as "id" from "pa""ge%%"'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (-5, "-5"),
        (1.5, "1.5"),
        (Decimal("1.50"), "1.50"),
        ("it's %s %1$L \\", "it's %s %1$L \\"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00"),
        (timedelta(days=1, microseconds=1), "86400000001 microseconds"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\x00\xff", "\\x00ff"),
        ({"a": [1]}, '{"a":[1]}'),
        (Colour.RED, "red"),
        ([], "{}"),
        ([None, 'a"b', "c\\d", True, "NULL", "{}"], '{NULL,"a\\"b","c\\\\d","true","NULL","{}"}'),
        ([[1, 2], [3, 4]], '{{"1","2"},{"3","4"}}'),
    ],
)
def test_a_value_has_one_text(value, text):
    """
    That which PostgreSQL reads as a value of the column's type.
    """
    assert values(Rows.query("select %(v)s", {"v": value})) == [text]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rows(""),
        lambda: Rows("page\0"),
        lambda: Rows("a..b"),
        lambda: Rows("page", []),
        lambda: Rows("page", equal={"": 1}),
        lambda: Rows("page", between={"at": 5}),
        lambda: Rows("page", between={"at": (1, 2, 3)}),
        lambda: Rows("page", params={"a": 1}),
        lambda: Rows("page", where="a = %(b)s", params={"a": 1}),
        lambda: Rows("page", where="a = 1", params={"a": 1}),
        lambda: Rows("page", where="a = %s", params={"a": 1}),
        lambda: Rows("page", where=" "),
        lambda: Rows("page", equal={"a": object()}),
        lambda: Rows("page", equal={"a": "\0"}),
        lambda: Rows.query("select '\0'"),
        lambda: Rows.query("select 5 % 2", {}),
    ],
)
def test_what_has_no_form_is_refused(make):
    """
    Before anything is sent, with what is wrong.
    """
    with pytest.raises(InvalidJob):
        make()


def test_options_are_checked_before_anything_is_sent():
    """
    A unique key for all jobs, a chunk without a key or size, a bad number, and rows that are none.
    """

    def made(rows="select 1 as id", **options):
        return backfill_of("index", rows, args=None, expires_in=None, options=options)

    for options in ({"unique": "k"}, {"priority": 10**6}, {"colour": 1}, {"rows": 5}):
        with pytest.raises(InvalidJob):
            made(**options)
    with pytest.raises(InvalidJob, match="key is missing"):
        begin(made(), None, 10, None)
    with pytest.raises(InvalidJob, match="chunk is 0"):
        begin(made(), "id", 0, None)
    with pytest.raises(InvalidJob):
        next_chunk(0)
    assert begin(made(Rows("page")), None, 10, None).params["key"] == "id"

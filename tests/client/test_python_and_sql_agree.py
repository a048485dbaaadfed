"""What Python takes, SQL takes.

What Python refuses, SQL refuses for producers in other languages.
"""

import contextlib
import json
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from forebay.arguments import keys
from forebay.arguments.json_guard import encode_args
from forebay.errors import EnqueueError, InvalidJob, error_from_sqlstate
from forebay.model import Debounce, JobOptions, Once, Replace, Throttle, checks
from forebay.model.unique import SECONDS_MAX, unique_from
from forebay.ops.flows import checked_address
from forebay.sql import composer

NOW = datetime.now(UTC)

BOTH_TAKE = [
    {"queue": "_a.b:c-d_9"},
    {"queue": "q" * 128},
    {"priority": checks.PRIORITY_MIN},
    {"priority": checks.PRIORITY_MAX},
    {"tag": "Größe 🎉"},
    {"tag": "t" * checks.TAG_CHARACTERS_MAX},
    {"correlation_id": "c" * checks.CORRELATION_ID_CHARACTERS_MAX},
    {"ordering_key": "k" * checks.ORDERING_KEY_CHARACTERS_MAX},
    {"ordering_key": "Größe 🎉"},
    {"limit_key": "k" * checks.LIMIT_KEY_CHARACTERS_MAX},
    {"limit_key": "Größe 🎉"},
    {"limit_key": "k", "unique": Once("k")},
    {"run_at": datetime(1970, 1, 1, tzinfo=UTC)},
    {"delay": 0},
    {"delay": -1},
    {"delay": -(10.0**12)},
    {"delay": checks.DELAY_SECONDS_MAX},
    {"max_attempts": 1},
    {"max_attempts": checks.MAX_ATTEMPTS_MAX},
    {"headers": {}},
    {"headers": {f"h{n}": "x" for n in range(checks.HEADERS_COUNT_MAX)}},
    {"headers": {"a": "b" * (checks.HEADERS_BYTES_MAX - len('{"a": ""}'))}},
    {"expires_at": NOW + timedelta(days=1)},
    {"unique": Once("k" * 200)},
    {"unique": Replace("Größe 🎉", on_busy="raise"), "delay": 5},
    {"unique": Debounce("k", wait=0.001, max_wait=0.001)},
    {"unique": Debounce("k", wait=1, max_wait=SECONDS_MAX)},
    {"unique": Throttle("k", period=SECONDS_MAX)},
]

BOTH_REFUSE = [
    {"queue": ""},
    {"queue": "q" * 129},
    {"queue": "ma il"},
    {"queue": "mail\n"},
    {"queue": "é"},
    {"priority": checks.PRIORITY_MIN - 1},
    {"priority": checks.PRIORITY_MAX + 1},
    {"tag": ""},
    {"tag": "t" * (checks.TAG_CHARACTERS_MAX + 1)},
    {"tag": "a\nb"},
    {"correlation_id": ""},
    {"correlation_id": "c" * (checks.CORRELATION_ID_CHARACTERS_MAX + 1)},
    {"correlation_id": "a\x7fb"},
    {"ordering_key": ""},
    {"ordering_key": "k" * (checks.ORDERING_KEY_CHARACTERS_MAX + 1)},
    {"ordering_key": "a\nb"},
    {"limit_key": ""},
    {"limit_key": "k" * (checks.LIMIT_KEY_CHARACTERS_MAX + 1)},
    {"limit_key": "a\nb"},
    {"delay": checks.DELAY_SECONDS_MAX + 86_400},
    {"max_attempts": 0},
    {"max_attempts": checks.MAX_ATTEMPTS_MAX + 1},
    {"headers": {f"h{n}": "" for n in range(checks.HEADERS_COUNT_MAX + 1)}},
    {"headers": {"a": "b" * (checks.HEADERS_BYTES_MAX - len('{"a": ""}') + 1)}},
    {"headers": {"a": 1}},
    {"run_at": NOW, "delay": 5},
    {"run_at": NOW, "expires_at": NOW},
    {"unique": Debounce("k", wait=1), "delay": 5},
    {"unique": Debounce("k", wait=1), "run_at": NOW},
]

#: Forms of ``unique_as``.
BOTH_REFUSE_AS_UNIQUE = [
    {},
    {"once": ""},
    {"once": "k" * 201},
    {"once": "a\nb"},
    {"once": 5},
    {"once": "k", "replace": "k"},
    {"once": "k", "wait": 5},
    {"once": "k", "on_busy": "skip"},
    {"debounce": "k"},
    {"debounce": "k", "wait": 0},
    {"debounce": "k", "wait": "5"},
    {"debounce": "k", "wait": 5, "max_wait": 4},
    {"throttle": "k"},
    {"throttle": "k", "period": -1},
    {"throttle": "k", "period": SECONDS_MAX + 1},
]


def enqueue_in_sql(conn, *, args="{}", **options):
    if isinstance(options.get("delay"), int | float):
        options["delay"] = timedelta(seconds=options["delay"])
    if "unique" in options:
        options["unique_as"] = Jsonb(options.pop("unique").as_json())
    if "headers" in options:
        options["headers"] = Jsonb(options["headers"])
    named = "".join(f", {name} => %({name})s" for name in options)
    with conn.transaction(force_rollback=True):
        conn.execute(
            f"select forebay.enqueue('mail', %(args)s::jsonb{named})", {"args": args, **options}
        )


def refusal_in_sql(conn, **options):
    try:
        enqueue_in_sql(conn, **options)
    except psycopg.Error as error:
        return error_from_sqlstate(error.sqlstate or "", error.diag.message_primary or "")
    return None


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


def test_both_take_options_at_their_bounds(conn):
    """
    Nothing that passes in Python is refused later by the database, inside the caller's transaction.
    """
    for options in BOTH_TAKE:
        JobOptions(**options)
        assert refusal_in_sql(conn, **options) is None, options


def test_both_refuse_the_same_options(conn):
    """
    A producer in SQL meets the same limits, with an error of the same class.
    """
    for options in BOTH_REFUSE:
        with pytest.raises(EnqueueError) as caught:
            JobOptions(**options)
        assert type(refusal_in_sql(conn, **options)) is type(caught.value), options


#: Those that PostgreSQL can store; the others reach no function.
CHARACTERS = [chr(code) for code in range(1, 0xA8)]

#: The beginning of an array of one job.
MANY = "jsonb_build_array(jsonb_build_object('kind', 'mail', 'args', '{}'::jsonb"

#: A text for people: a check of Python, and a statement with it.
TEXTS = {
    field: (lambda text, field=field: JobOptions(**{field: text}),
            f"select forebay.enqueue('mail', {field} => %s)")
    for field in ("tag", "correlation_id", "ordering_key", "limit_key")
}  # fmt: skip
TEXTS |= {
    f"{field} of many": (
        TEXTS[field][0],
        f"select forebay.enqueue_many({MANY}, '{field}', %s::text)))",
    )
    for field in ("tag", "correlation_id", "ordering_key", "limit_key")
}
TEXTS |= {
    "unique": (
        lambda text: JobOptions(unique=Once(text)),
        "select forebay.enqueue('mail', unique_as => jsonb_build_object('once', %s::text))",
    ),
    "unique of many": (
        lambda text: JobOptions(unique=Once(text)),
        f"select forebay.enqueue_many({MANY}, 'unique_as', jsonb_build_object('once', %s::text))))",
    ),
    "signal": (
        lambda text: checked_address(text, "name"),
        "select forebay.signal(name => %s, key => 'a')",
    ),
    "key of a signal": (
        lambda text: checked_address(text, "key"),
        "select forebay.signal(name => 'a', key => %s)",
    ),
    "app of queues": (
        lambda text: checks.checked_text(text, "app", characters_max=200),
        "select forebay.apply_queues(%s, '[]'::jsonb)",
    ),
    "app of schedules": (
        lambda text: checks.checked_text(text, "app", characters_max=200),
        "select forebay.apply_schedules(%s, '[]'::jsonb)",
    ),
}


@pytest.mark.parametrize("field", TEXTS)
def test_both_refuse_the_same_characters_in_each_text(conn, field):
    """
    A job that SQL took with a control character that Python refuses would end as a dead letter when
    its handler enqueues a child, which inherits its correlation id.
    """
    in_python, in_sql = TEXTS[field]
    taken, passed = set(), set()
    for character in CHARACTERS:
        text = f"a{character}b"
        with contextlib.suppress(InvalidJob):
            in_python(text)
            taken.add(character)
        try:
            with conn.transaction(force_rollback=True):
                conn.execute(in_sql, [text])
            passed.add(character)
        except psycopg.Error as error:
            if error.sqlstate != "JQ001":
                raise
    assert taken == passed
    assert {*CHARACTERS} - passed == {*map(chr, [*range(1, 0x20), *range(0x7F, 0xA0)])}


def test_the_schema_names_the_control_characters_in_one_place():
    """A second pattern could differ, or depend on the encoding or the collation."""
    for file in composer.SCHEMA.rglob("*.sql"):
        text = file.read_text("utf-8")
        assert "x1f" not in text, file
        assert "[:cntrl:]" not in text, file


def test_both_make_the_same_keys_of_arguments_with_any_character(conn):
    """A key that is not printable is hashed on both sides, so that it is one key."""
    for character in CHARACTERS:
        (in_sql,) = conn.execute(
            "select forebay._plain_key(jsonb_build_array(%s::text))", [f"a{character}b"]
        ).fetchone()
        assert in_sql == keys._plain_key([f"a{character}b"]), hex(ord(character))


def test_both_refuse_the_same_intents(conn):
    """
    A JSON form of a uniqueness mode that SQL refuses is refused on the command line, and the
    reverse.
    """
    for form in BOTH_REFUSE_AS_UNIQUE:
        with pytest.raises(InvalidJob):
            unique_from(form)
        assert type(refusal_in_sql(conn, unique_as=Jsonb(form))) is InvalidJob, form


@pytest.mark.parametrize(
    "args",
    [
        {"a": "x" * checks.ARGS_BYTES_MAX},
        {"a": ["x" * 100] * 20_000},
        json.loads('{"a":' + "[" * 64 + "1" + "]" * 64 + "}"),
        json.loads('{"a":' * 300 + "1" + "}" * 300),
    ],
    ids=["long text", "long list", "65 levels", "300 levels"],
)
def test_both_refuse_the_same_payloads(conn, args):
    """
    Too large and too deep are the same errors on both sides.
    """
    with pytest.raises(EnqueueError) as caught:
        encode_args(args)

    assert type(refusal_in_sql(conn, args=json.dumps(args))) is type(caught.value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**299), 10**299)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3)
    ),
    max_leaves=10,
)


def same(stored, sent):
    if isinstance(sent, dict):
        return stored.keys() == sent.keys() and all(same(stored[name], sent[name]) for name in sent)
    if isinstance(sent, list):
        return len(stored) == len(sent) and all(map(same, stored, sent))
    if isinstance(sent, float):
        # jsonb writes 1e16 as digits, which reads as an integer; declared a float, it is one again.
        return float(stored) == sent
    return stored == sent and type(stored) is type(sent)


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(args=st.dictionaries(st.text(st.characters(), max_size=5), json_values, max_size=3))
def test_what_the_guard_passes_comes_back_from_jsonb_the_same(conn, args):
    """
    The guard in Python knows everything jsonb refuses, and nothing that passes is changed.
    """
    try:
        text = encode_args(args)
    except EnqueueError:
        return

    (stored,) = conn.execute("select %s::jsonb", (text,)).fetchone()
    assert same(stored, args)

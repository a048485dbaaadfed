import copy
import inspect
import pickle
import re
import traceback

import psycopg
import pytest

from forebay import errors
from forebay.db.errors import translate
from forebay.errors import (
    SQLSTATES,
    AlreadyRedriven,
    ConfigError,
    DatabaseUnavailable,
    DeadLetterNotFound,
    ForebayError,
    ForeignCluster,
    GroupInUse,
    GroupNotFound,
    HardTimeout,
    InvalidJob,
    JobCancelled,
    JobDied,
    JobNotFound,
    LeaseLost,
    NoResult,
    NotIncluded,
    PayloadTooDeep,
    PayloadTooLarge,
    ResultTimeout,
    SchemaError,
    ServerStartError,
    SinkUnavailable,
    SoftTimeout,
    TargetUnavailable,
    TransactionStateError,
    UnknownBatch,
    UnknownKind,
    WorkerLost,
    WrongConnection,
    error_from_sqlstate,
)
from forebay.sql import migrations

EXAMPLES = [
    ConfigError("concurrency", "is 0", value=0, source="--concurrency"),
    NotIncluded("shop.mail"),
    ServerStartError("no binaries", folder="/srv/pg", detail="log", hint="Install it."),
    SchemaError(found=None, needed=3),
    ForeignCluster(recorded="1/5", actual="2/5"),
    errors.AdoptRefused(),
    DatabaseUnavailable("connection refused"),
    errors.PermissionDenied("permission denied for function jobs", roles=("forebay_reader",)),
    SinkUnavailable("no answer"),
    TargetUnavailable("no answer"),
    WrongConnection("a str is not a connection", given="builtins.str", hint="Connect first."),
    TransactionStateError("forebay.claim", "a transaction is open"),
    InvalidJob("user_id", "is missing", kind="mail", index=3),
    PayloadTooLarge(bytes=2, limit=1),
    PayloadTooDeep(depth=65, limit=64),
    errors.KeyBusy("order:17"),
    errors.PayloadDiffers(7),
    errors.EndpointNotFound("shop"),
    errors.EndpointExists("shop"),
    errors.EndpointDisabled("shop", why="moving"),
    errors.EndpointInUse("shop", waiting=3),
    errors.ScheduleNotFound("nightly"),
    errors.ScheduleChanged("nightly"),
    errors.SubjectNotFound(queue="crawl", subject="example.org"),
    errors.OutcomeRefused("state", "cannot be saved: has no JSON form"),
    errors.LaneTaken("mail", priority=100),
    errors.QueueFull("mail", waiting=10, max_waiting=10),
    errors.TooManyWatched(1000),
    errors.BackfillChanged("7-ab"),
    errors.BackfillNotFound(7),
    errors.JobsChanged(token="7-ab"),
    GroupInUse(queue="mail", group="audit"),
    GroupNotFound(queue="mail", group="audit"),
    DeadLetterNotFound(7, group="default"),
    AlreadyRedriven(7, new_job_id=9),
    LeaseLost(4),
    UnknownBatch(lease=4, claim_no=2),
    JobNotFound(7),
    NoResult(7, state="cancelled"),
    JobDied(7, reason="exhausted", error_type="ValueError", error_message="no luck"),
    ResultTimeout(7, state="ready", seconds=2.5),
    UnknownKind("mail", known=["b", "a"]),
    SoftTimeout(30),
    HardTimeout(60.5),
    JobCancelled(7, reason="not wanted"),
    WorkerLost(),
    errors.StepFailed("charge", "ValueError", "no luck"),
    errors.StepRefused("charge", "has this name a second time", hint="Give it a key."),
    errors.StepChanged("charge", "int", "is text"),
    errors.StepTooLarge("charge", "its result has 2 bytes, the limit is 1"),
    errors.WaitTimeout("approval", 60.0),
    errors.WaitTaken("approval", 7, "approval", "42"),
    errors.ChildrenDied("labels", 1, 3, 7, job_ids=(7,)),
    errors.ParkingSwallowed("cooling off"),
]


def error_classes():
    return [
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, ForebayError)
    ]


def test_an_error_pickles_with_all_it_carries():
    """
    Errors cross process borders: a child process reports the same error, with its facts.
    """
    for error in EXAMPLES:
        copy = pickle.loads(pickle.dumps(error))

        assert type(copy) is type(error)
        assert copy.args == error.args == (error.message,), error
        assert copy.__dict__ == error.__dict__, error


def test_a_message_is_one_lower_case_line_and_advice_is_apart():
    """
    Messages read like PostgreSQL's: one line, lower-case, facts only.
    """
    for error in EXAMPLES:
        assert "\n" not in error.message, error
        assert error.message[0].islower(), error
        assert not error.message.endswith("."), error
        assert error.hint is None or error.hint not in error.message, error


def test_the_hint_is_in_the_traceback_once_as_it_is_now():
    """
    Logs, pytest and error trackers show notes; a hint that is changed later replaces the first one.
    """
    error = WrongConnection("a str is not a connection", given="x", hint="Connect first.")
    error.add_note("of the application")
    error.hint = f"{error.hint} Or use enqueue_now."

    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        text = "".join(traceback.format_exception(each))
        assert text.endswith("hint: Connect first. Or use enqueue_now.\nof the application\n"), text
    error.hint = None
    assert "hint" not in "".join(traceback.format_exception(error))


def test_every_error_class_has_an_example_here():
    """
    A new class cannot escape the tests above.
    """
    bases = {cls.__base__ for cls in error_classes()}

    assert {type(error) for error in EXAMPLES} == set(error_classes()) - bases


def test_every_error_class_is_public():
    """
    ``__all__`` names every class.
    """
    for cls in error_classes():
        assert cls.__name__ in errors.__all__


def test_each_sqlstate_belongs_to_the_class_that_names_it():
    """
    The table and the classes agree in both directions.
    """
    assert {state: cls.sqlstate for state, cls in SQLSTATES.items()} == {s: s for s in SQLSTATES}
    of_postgresql = {errors.QueueFull}
    assert {cls for cls in error_classes() if cls.sqlstate} - of_postgresql == set(
        SQLSTATES.values()
    )


def test_sql_raises_these_codes_and_no_others():
    """
    The migrations and the table list the same SQLSTATEs.
    """
    raised = {
        code
        for migration in migrations()
        for code in re.findall(r"errcode = '(JQ\d{3})'", migration.text)
    }

    assert raised == set(SQLSTATES)


def test_sql_sends_the_facts_of_its_errors():
    """
    Each statement that raises an error with facts sends them in DETAIL: no caller reads messages.
    """
    with_facts = (
        "JQ002",
        "JQ003",
        "JQ004",
        "JQ005",
        "JQ006",
        "JQ010",
        "JQ012",
        "JQ013",
        "JQ016",
        "JQ041",
        "53400",
    )
    raised = [
        statement
        for migration in migrations()
        for statement in re.findall(r"raise exception.*?;\n", migration.text, re.DOTALL)
        if any(f"'{code}'" in statement for code in with_facts)
    ]

    assert len(raised) >= len(with_facts)
    assert [statement for statement in raised if "detail = " not in statement] == []


def test_what_sql_said_is_kept_word_for_word():
    """
    Message, detail and hint of a SQL function reach the caller unchanged.
    """
    error = error_from_sqlstate("JQ002", "args take 9 bytes", detail="d", hint="h")

    assert isinstance(error, PayloadTooLarge)
    assert (error.message, error.detail, error.hint) == ("args take 9 bytes", "d", "h")
    assert error.bytes is None
    assert pickle.loads(pickle.dumps(error)).message == error.message


def test_the_column_of_a_sql_error_names_the_field():
    """
    A refused parameter is named by the server's COLUMN item.
    """
    error = error_from_sqlstate("JQ001", "queue is empty", column="queue")

    assert isinstance(error, InvalidJob)
    assert error.field == "queue"


def test_a_code_of_a_newer_schema_is_still_ours():
    """
    An unknown code of class JQ is a plain ForebayError, not a foreign exception.
    """
    assert type(error_from_sqlstate("JQ999", "news")) is ForebayError


def test_only_what_may_help_to_repeat_is_retryable():
    """
    Retry or not is read from the class.
    """
    retryable = {type(error) for error in EXAMPLES if error.retryable}

    assert retryable == {
        DatabaseUnavailable,
        ResultTimeout,
        errors.KeyBusy,
        errors.QueueFull,
        UnknownKind,
        SoftTimeout,
        HardTimeout,
        SinkUnavailable,
        TargetUnavailable,
        errors.TooManyWatched,
        WorkerLost,
    }


def test_a_missing_address_names_the_four_places():
    """
    Whoever has no address yet learns every place where one can be put.
    """
    message = ConfigError.no_address().message

    for place in ("--dsn", "FOREBAY_DATABASE_URL", "DATABASE_URL", "PG*"):
        assert place in message


@pytest.mark.parametrize(
    ("found", "text"), [(None, "not installed"), (2, "too old"), (4, "too new")]
)
def test_a_schema_error_names_both_versions(found, text):
    """
    The operator sees what is installed and what is needed.
    """
    error = SchemaError(found=found, needed=3)

    assert text in error.message
    assert "3" in error.message
    assert str(found) in error.message or found is None


def test_an_error_in_a_bulk_call_names_the_index_and_leaves_the_original_alone():
    """
    One bad item of a million can be found.
    """
    plain = InvalidJob("user_id", "is missing")
    indexed = plain.at_index(17)

    assert (indexed.index, indexed.field) == (17, "user_id")
    assert str(indexed) == "job 17: user_id is missing"
    assert plain.index is None
    assert str(plain) == "user_id is missing"


def test_a_value_that_cannot_be_shown_does_not_hide_the_error():
    """
    A hostile ``__repr__`` in a refused value is survived.
    """

    class Hostile:
        def __repr__(self):
            raise RuntimeError

    assert "Hostile" in errors.shown(Hostile())
    assert "\n" not in errors.shown("a\nb\x00c")
    assert len(errors.shown("x" * 10_000_000)) <= 80


def test_a_lost_connection_does_not_repeat_the_sql_that_ran():
    """
    The server's message may have a page of SQL as its context.
    """
    context = (
        '\nCONTEXT:  SQL statement "select 1\n'
        + "from x\n" * 40
        + '"\nPL/pgSQL function forebay.depth(text)'
    )
    error = psycopg.errors.AdminShutdown(
        f"terminating connection due to administrator command{context}"
    )
    found = translate(error)
    assert isinstance(found, DatabaseUnavailable)
    assert "terminating connection" in str(found)
    assert found.detail is None

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.config import (
    GROUPS,
    RetentionSettings,
    RetrySettings,
    SegmentSettings,
    WorkerSettings,
    declared_settings,
    find_file_options,
    load_settings,
    masked_dsn,
    parse_queue_weights,
    resolve_address,
    resolve_settings,
)
from forebay.db.address import parsed_address
from forebay.errors import ConfigError
from forebay.policy.backoff import STRATEGIES


def test_flags_beat_environment_beats_file_beats_default(tmp_path):
    """
    One order of precedence, and every value remembers its source.
    """
    (tmp_path / "forebay.toml").write_text("concurrency = 2\npoll_seconds = 1\ngrace_seconds = 7\n")
    settings = load_settings(
        {"concurrency": 4, "lease_seconds": None},
        environ={"FOREBAY_CONCURRENCY": "3", "FOREBAY_POLL_SECONDS": "0.5"},
        folder=tmp_path,
    )

    worker = settings.worker
    assert (worker.concurrency, worker.poll_seconds, worker.grace_seconds) == (4, 0.5, 7.0)
    assert settings.sources["concurrency"] == "--concurrency"
    assert settings.sources["poll_seconds"] == "FOREBAY_POLL_SECONDS"
    assert settings.sources["grace_seconds"] == str(tmp_path / "forebay.toml")
    assert settings.sources["lease_seconds"] == "default"


def test_every_setting_is_one_row_with_its_meaning():
    """
    `forebay config` can print each value, its source and what it means.
    """
    rows = resolve_settings(flags={}, environ={"FOREBAY_QUEUE": "a,b=2"}).rows()
    names = [field.name for cls in GROUPS.values() for field in declared_settings(cls)]

    assert [row.name for row in rows] == names
    assert len(set(names)) == len(names)
    assert all(row.meaning for row in rows)
    assert {row.name: row.source for row in rows}["queue"] == "FOREBAY_QUEUE"


def test_the_options_of_a_project_are_found_from_below(tmp_path):
    """
    A command in a subfolder uses the project's options; a pyproject.toml without our table is
    passed by.
    """
    below = tmp_path / "src" / "shop"
    below.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.forebay]\nmax_attempts = 3\n")
    (tmp_path / "src" / "pyproject.toml").write_text("[project]\nname = 'x'\n")

    found = find_file_options(below)

    assert found.path == tmp_path / "pyproject.toml"
    assert load_settings(environ={}, folder=below).retry.max_attempts == 3


def test_two_files_with_options_in_one_folder_are_refused(tmp_path):
    """
    Nobody has to guess which of two files won.
    """
    (tmp_path / "pyproject.toml").write_text("[tool.forebay]\nmax_attempts = 3\n")
    (tmp_path / "forebay.toml").write_text("max_attempts = 4\n")

    with pytest.raises(ConfigError, match="both have options"):
        find_file_options(tmp_path)


def test_a_broken_file_is_named(tmp_path):
    """
    A syntax error in TOML names the file.
    """
    (tmp_path / "forebay.toml").write_text("concurrency = \n")

    with pytest.raises(ConfigError, match=r"forebay\.toml cannot be read"):
        find_file_options(tmp_path)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("concurrency", {"concurrency": 0}),
        ("concurrency", {"concurrency": 10**6}),
        ("poll_seconds", {"poll_seconds": 0}),
        ("poll_seconds", {"poll_seconds": float("nan")}),
        ("lease_seconds", {"lease_seconds": 0}),
        ("lease_seconds", {"lease_seconds": float("inf")}),
        (
            "lease_seconds",
            {"lease_seconds": 2.9, "suspect_seconds": 2, "lease_margin_seconds": 0.5},
        ),
        ("lease_margin_seconds", {"lease_margin_seconds": 29}),
        ("lease_margin_seconds", {"lease_margin_seconds": 40}),
        ("suspect_seconds", {"suspect_seconds": 1}),
        ("suspect_seconds", {"suspect_seconds": 31}),
        ("heartbeat_seconds", {"heartbeat_seconds": 0}),
        ("grace_seconds", {"grace_seconds": -1}),
        ("starving_share", {"starving_share": 0.6}),
        ("soft_timeout_seconds", {"soft_timeout_seconds": 9, "hard_timeout_seconds": 5}),
        ("hard_timeout_seconds", {"hard_timeout_seconds": 0}),
        ("queue", {"queue": "a,a"}),
        ("queue", {"queue": ""}),
        ("queue", {"queue": "a,,b"}),
        ("queue", {"queue": "a=0"}),
        ("queue", {"queue": "a=x"}),
        ("queue", {"queue": "a=-1"}),
        ("queue", {"queue": "a=1001"}),
        ("queue", {"queue": "a b"}),
    ],
)
def test_worker_settings_that_cannot_work_are_refused_by_field(field, changes):
    """
    A worker with contradicting settings does not start, and says which setting it is.
    """
    with pytest.raises(ConfigError) as caught:
        WorkerSettings(**changes)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("retry_strategy", lambda: RetrySettings(retry_strategy="quadratic")),
        ("retry_cap_seconds", lambda: RetrySettings(retry_cap_seconds=1)),
        ("max_attempts", lambda: RetrySettings(max_attempts=0)),
        ("retention_days", lambda: RetentionSettings(retention_days=-1)),
        ("reserve_rows", lambda: SegmentSettings(segment_rows=10**6, reserve_rows=10**6)),
    ],
)
def test_other_settings_are_checked_too(field, make):
    """
    Each group refuses by the name of the setting.
    """
    with pytest.raises(ConfigError) as caught:
        make()

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("environ", "flags"),
    [
        ({"FOREBAY_CONCURRENCY": "ten"}, {}),
        ({"FOREBAY_CONCURRENCY": "1.5"}, {}),
        ({"FOREBAY_CONCURRENCY": "0"}, {}),
        ({}, {"concurrency": 0}),
        ({}, {"concurrency": True}),
        ({}, {"concurrency": 2.5}),
    ],
)
def test_a_refused_value_is_shown_with_its_source(environ, flags):
    """
    The message says where the wrong value was written.
    """
    with pytest.raises(ConfigError) as caught:
        resolve_settings(flags=flags, environ=environ)

    assert caught.value.field == "concurrency"
    assert caught.value.source == ("FOREBAY_CONCURRENCY" if environ else "--concurrency")
    assert caught.value.source in caught.value.message


def test_a_typo_in_a_file_is_refused_with_the_likely_name(tmp_path):
    """
    An option nobody knows would otherwise be a default nobody notices.
    """
    (tmp_path / "forebay.toml").write_text("concurency = 2\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={}, folder=tmp_path)

    assert caught.value.hint == "Did you mean concurrency?"


def test_the_address_does_not_belong_into_a_file(tmp_path):
    """
    Files are committed, addresses have passwords.
    """
    (tmp_path / "forebay.toml").write_text("dsn = 'postgresql://db/shop'\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={}, folder=tmp_path)

    assert "FOREBAY_DATABASE_URL" in caught.value.hint


def test_unknown_variables_are_reported_and_not_refused():
    """
    Kubernetes sets FOREBAY_PORT for a service named forebay; that must not stop a worker.
    """
    settings = resolve_settings(
        flags={}, environ={"FOREBAY_PORT": "tcp://10.0.0.1", "FOREBAY_DATABASE_URL": "embedded"}
    )

    assert settings.ignored == ("FOREBAY_PORT",)


def test_an_empty_variable_counts_as_absent_and_none_switches_off():
    """
    Compose files pass empty strings for what was not set.
    """
    settings = resolve_settings(
        flags={}, environ={"FOREBAY_CONCURRENCY": "", "FOREBAY_SOFT_TIMEOUT_SECONDS": "none"}
    )

    assert settings.worker.concurrency == 10
    assert settings.worker.soft_timeout_seconds is None


def test_only_given_values_go_into_the_database():
    """
    A process that knows nothing must not undo what another has stored.
    """
    settings = resolve_settings(flags={}, environ={"FOREBAY_RETENTION_DAYS": "7"})

    assert settings.database_values() == {"retention_days": 7}
    assert resolve_settings(flags={}, environ={}).database_values() == {}


def test_queues_and_weights_have_a_short_form():
    """
    `--queue a,b=2` means one slot for a beside two for b.
    """
    assert parse_queue_weights(" a , b=2,c.d=1000") == {"a": 1, "b": 2, "c.d": 1000}
    assert WorkerSettings().queue_weights is None
    assert WorkerSettings(queue="a").queue_weights == {"a": 1}


def test_queues_are_chosen_by_names_weights_or_the_short_form():
    """
    A list of names is what most callers try first.
    """
    for queues in ("mail,reports", ["mail", "reports"], {"mail": 1, "reports": 1}):
        assert parse_queue_weights(queues) == {"mail": 1, "reports": 1}
    assert parse_queue_weights(iter(["mail"])) == {"mail": 1}


@pytest.mark.parametrize(
    ("queues", "problem"),
    [
        (5, "is 5, not names of queues"),
        (b"mail", "not names of queues"),
        ([], "names no queue"),
        ({}, "names no queue"),
        ("", "is not a name"),
        (["a b"], "is not a name: 'a b'"),
        ([5], "must be text"),
        (["mail", "mail"], "names mail twice"),
        ("mail=x", "a weight that is not a number: 'x'"),
        ({"mail": "x"}, "a weight that is not a number: 'x'"),
        ({"mail": True}, "a weight that is not a number"),
        ({"mail": 0}, "a weight outside 1 to 1000"),
        ("mail=" + "9" * 5000, "a weight that is not a number"),
    ],
)
def test_other_queues_are_refused_with_the_forms_that_are_taken(queues, problem):
    """
    No choice of queues ends in an error of the language.
    """
    with pytest.raises(ConfigError) as caught:
        parse_queue_weights(queues)

    assert caught.value.field == "queue"
    assert problem in caught.value.problem
    assert caught.value.hint


def test_strategies_of_settings_and_policies_are_the_same():
    """
    The settings cannot name a strategy that the policy does not have.
    """
    for strategy in STRATEGIES:
        assert RetrySettings(retry_strategy=strategy)
        assert strategy in next(f for f in fields(RetrySettings)).metadata["meaning"]


ADDRESS = "postgresql://ann:secret@db/shop"


@pytest.mark.parametrize(
    ("dsn", "environ", "source"),
    [
        (ADDRESS, {"FOREBAY_DATABASE_URL": "postgresql://other"}, "--dsn"),
        (None, {"FOREBAY_DATABASE_URL": ADDRESS, "DATABASE_URL": "x"}, "FOREBAY_DATABASE_URL"),
        (None, {"DATABASE_URL": ADDRESS, "PGHOST": "h"}, "DATABASE_URL"),
        (None, {"DATABASE_URL": "", "PGHOST": "h", "PGDATABASE": "d"}, "PGHOST, PGDATABASE"),
    ],
)
def test_an_address_comes_from_the_first_of_the_four_places(dsn, environ, source):
    """
    --dsn, FOREBAY_DATABASE_URL, DATABASE_URL, PG*, in this order.
    """
    address = resolve_address(dsn, environ)

    assert address.source == source
    assert address.dsn == ("" if source.startswith("PG") else ADDRESS)
    assert "secret" not in repr(address) + address.masked


@pytest.mark.parametrize(
    "environ", [{}, {"PGPASSWORD": "x", "PGUSER": "ann"}, {"DATABASE_URL": ""}]
)
def test_without_an_address_nothing_is_guessed(environ):
    """
    No address is an error that names the four places; a user name is not an address.
    """
    with pytest.raises(ConfigError, match=r"--dsn, FOREBAY_DATABASE_URL, DATABASE_URL or PG\*"):
        resolve_address(None, environ)


@pytest.mark.parametrize(
    "dsn", ["", " ", "sqlite:///x.db", "mysql://ann:secret@db/shop", "shop", "EMBEDDED"]
)
def test_what_is_no_postgresql_address_is_refused(dsn):
    """
    Also an empty --dsn, which an unset shell variable makes: libpq would take it for a default.
    """
    with pytest.raises(ConfigError) as caught:
        resolve_address(dsn, {"PGHOST": "h"})

    assert caught.value.source == "--dsn"
    assert "secret" not in str(caught.value)


def test_other_peoples_forms_of_the_address_are_understood():
    """
    SQLAlchemy's driver suffix and the short scheme mean the same server.
    """
    assert resolve_address("postgresql+psycopg://db/shop", {}).dsn == "postgresql://db/shop"
    assert resolve_address("postgres://db/shop", {}).dsn == "postgresql://db/shop"
    assert resolve_address("host=/run/pg dbname=shop", {}).dsn == "host=/run/pg dbname=shop"
    assert resolve_address("embedded", {}).is_embedded


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:s3cr3t@db/shop",
        "postgresql://ann:s3cr3t%40@db:5432/shop?sslmode=require",
        "postgresql://db/shop?user=ann&password=s3cr3t&x=1",
        "postgresql://db/shop?sslpassword=s3cr3t",
        "host=db password=s3cr3t",
        "host=db PASSWORD = 's3cr3t with \\' quote' user=ann",
        "password='s3cr3t unterminated",
        "postgresql://ann:s3cr3t?s3cr3t@db/shop",
        "postgresql://ann:#s3cr3t@db/shop",
        "postgresql://ann:s3cr3t:s3cr3t@db/shop",
        "postgresql://ann:x/s3cr3t@db/shop",
        "postgresql://ann:x@s3cr3t@db/shop",
        "postgresql://db/shop?pass%77ord=s3cr3t",
        "postgresql://db/shop?password=#s3cr3t",
        "postgresql+asyncpg://ann:s3cr3t@db/shop",
        "https://db/index?api_key=s3cr3t",
        "ann:s3cr3t@db/shop",
        "postgres:/ann:s3cr3t@db/shop",
        r"password=a\ s3cr3t user=ann",
        r"password='a\' s3cr3t' user=ann",
        "password = 'a\\",
    ],
)
def test_no_form_of_a_password_is_shown(dsn):
    """
    URLs, queries and keywords are masked alike.
    """
    assert "s3cr3t" not in masked_dsn(dsn)
    assert "****" in masked_dsn(dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        "host=db sslmode=require user='a b'",
        "postgresql://ann@db:5432/shop?application_name=x",
        "postgresql://[::1]:5432/shop",
        "embedded",
        "",
    ],
)
def test_an_address_without_a_secret_is_shown_as_it_is(dsn):
    """
    Nothing else is masked.
    """
    assert masked_dsn(dsn) == dsn


@pytest.mark.parametrize("password", ["x/s3cr3t", "s3cr3t/", "s3cr3t/@"])
def test_a_password_that_libpq_would_misread_is_refused_before_libpq_prints_it(password):
    """
    The message has the address without the password, and says how to write it.
    """
    with pytest.raises(ConfigError) as caught:
        resolve_address(f"postgresql://ann:{password}@db/shop", {})
    assert "s3cr3t" not in str(caught.value)
    assert "%2F" in caught.value.hint
    assert resolve_address("postgresql://db:5432/shop?application_name=a@b", {})


_PASSWORDS = st.text("ab1%/@?#:'\\\\ =0", max_size=8).map(lambda text: f"s3{text}cr")


@pytest.mark.parametrize(
    "form",
    [
        "postgresql://ann:{}@db/shop",
        "postgresql://ann:{}@db:5432/shop?x=1",
        "postgresql://db/shop?user=ann&password={}",
        "host=db password={} user=ann",
        "host=db password='{}' user=ann",
    ],
)
@given(password=_PASSWORDS)
def test_an_address_is_refused_or_libpq_reads_it(form, password):
    """
    Whatever stands in an unescaped password: libpq takes no part of it for a host, and complains
    about none.
    """
    said = ""
    host = "db"
    try:
        host = parsed_address(resolve_address(form.format(password), {}).dsn)["host"]
    except ConfigError as error:
        said = str(error)
    assert password not in said
    assert host == "db"

"""Queues that an application declares, and what applying them does, from Python."""

import asyncio
import copy
import pickle

import psycopg
import pytest

from forebay import App, Client, Queue, QueueDifference
from forebay.errors import ConfigError, InvalidJob
from tests.client.drivers import ALL


def test_a_declared_queue_is_used_as_its_name(database):
    """In a declaration of a handler, in options, and in calls of a client."""
    app = App(database)
    imports = app.queue("imports", concurrency=20)

    @app.job(queue=imports)
    def fetch() -> None: ...

    @app.job
    def other() -> None: ...

    assert fetch.kind.queue == "imports"
    assert type(fetch.kind.queue) is str
    with psycopg.connect(database) as conn:
        fetch.enqueue(conn)
        other.using(queue=imports).enqueue(conn)
        Client().enqueue(conn, "fetch", queue=imports)
    client = app.client()
    client.pause_queue(imports)
    assert [job.queue for job in client.jobs(queue=imports)] == ["imports"] * 3
    assert app.queues == {"imports": imports}
    assert app.worker(queues={imports: 1})


def test_a_declared_queue_is_copied_with_its_settings():
    imports = App().queue("imports", concurrency=20)
    for copied in (copy.deepcopy(imports), pickle.loads(pickle.dumps(imports))):
        assert (type(copied), copied, copied.settings) == (Queue, "imports", imports.settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"concurrency": 0}, "queue q: concurrency is 0, not within 1 to 1000000"),
        ({"concurrency": True}, "queue q: concurrency must be an integer, not bool: True"),
        ({"max_waiting": "10"}, "queue q: max_waiting must be an integer, not str: '10'"),
        ({"rate": 0}, "queue q: rate is 0, not within 0.000001 to 1,000,000 starts per second"),
        ({"rate": float("nan")}, "queue q: rate is nan, not within"),
        ({"key_rate": "2/s"}, "queue q: key_rate must be a number, not str"),
        ({"burst": 3}, "queue q: burst is given without rate"),
        ({"key_burst": 3, "rate": 1}, "queue q: key_burst is given without key_rate"),
        ({"max_waiting_group": "a"}, "queue q: max_waiting_group is given without max_waiting"),
        (
            {"max_waiting_group": ("a b"), "max_waiting": 1},
            "queue q: max_waiting_group is not a name",
        ),
        ({"shards": 65}, "queue q: shards is 65, not within 1 to 64"),
        ({"dead_keep_days": "always"}, "queue q: dead_keep_days must be an integer, not str"),
        ({"groups": "default"}, "queue q: groups must be names, not 'default'"),
        ({"groups": ["a", "a"]}, "queue q: groups names a group twice: a, a"),
        ({"groups": ["a b"]}, "queue q: groups is not a name: 'a b'"),
        ({"notices": "on"}, "queue q: notices must be True or False, not 'on'"),
        ({"notices": 1}, "queue q: notices must be True or False, not 1"),
        ({"name": "a b"}, "queue 'a b': name is not a name"),
        ({"name": None}, "queue None: name must be text"),
    ],
)
def test_a_wrong_setting_is_refused_at_the_declaration(settings, message):
    app = App()
    with pytest.raises(ConfigError) as error:
        app.queue(**{"name": "q", **settings})
    assert message in str(error.value)
    assert app.queues == {}


def test_a_queue_is_declared_once(database):
    """Again with the same settings is the same declaration: a module may be imported twice."""
    app = App(database)
    app.queue("imports", concurrency=5, groups=["default"])
    app.queue("imports", concurrency=5, groups=("default",))
    with pytest.raises(ConfigError) as error:
        app.queue("imports", rate=2)
    assert (
            "queue imports is declared twice: with concurrency 5, groups ('default',), and with "
            "rate 2"
            ) in str(error.value)  # fmt: skip
    assert len(app.apply()) == 2


def test_notices_are_declared_and_switched_by_the_client(database):
    """Declared off is what the database has; a wrong value is refused by name."""
    app = App(database, name="shop")
    app.queue("mail", notices=True)
    app.queue("imports", notices=False)
    assert [(each.queue, each.setting, each.action) for each in app.apply()] == [
        ("mail", "notices", "set")
    ]
    client = app.client()
    assert client.set_notices("mail", False) is True
    assert client.set_notices("mail", False) is False
    with pytest.raises(InvalidJob) as error:
        client.set_notices("mail", 1)
    assert "enabled" in str(error.value)


def test_applying_returns_what_was_different(database):
    app = App(database, name="shop")
    app.queue("imports", rate=0.5, burst=3, dead_keep_days="forever", groups=["default"])
    preview = app.apply(dry_run=True)
    done = app.apply()
    assert preview == done
    assert [(one.setting, one.database, one.code, one.action, one.is_pending) for one in done] == [
        ("rate", None, {"rate": 0.5, "burst": 3}, "set", True),
        ("dead_keep_days", None, "forever", "set", True),
        ("group default", None, "open", "set", True),
    ]
    client = app.client()
    assert client.limit_queue("imports", burst=9).rate == 0.5
    client.keep_dead("imports", days=5)
    (kept, also) = app.apply()
    assert isinstance(kept, QueueDifference)
    assert (kept.database, kept.applied, kept.applied_by) == (
        {"rate": 0.5, "burst": 9}, {"rate": 0.5, "burst": 3}, "shop"
    )  # fmt: skip
    assert (kept.action, also.action, kept.is_pending) == ("kept", "kept", False)
    assert kept.applied_at is not None
    assert {one.action for one in asyncio.run(app.aapply(overwrite=True))} == {"change"}
    assert app.apply() == []


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_it_is_applied_in_the_callers_transaction(kind, database):
    """On every connection that is accepted: a rollback takes it back."""
    app = App(database)
    imports = app.queue("imports", concurrency=20)
    driver = kind(database)
    try:
        before = driver.xid()
        assert len(driver.client("apply_queues", app.name, [imports])) == 1
        driver.client("limit_queue", imports, rate=2)
        assert driver.xid() == before
        driver.rollback()
    finally:
        driver.close()
    assert len(app.apply(dry_run=True)) == 1


def test_the_name_of_an_app_is_where_it_is_found():
    assert App(name="shop").name == "shop"
    assert App().name == __name__
    assert found_here.name == f"{__name__}:found_here"
    with pytest.raises(ConfigError, match="name of the app is empty"):
        App(name="")


found_here = App()

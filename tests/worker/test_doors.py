"""What a worker is made with: wrong values are refused by their name, whatever their type."""

import psycopg
import pytest

from forebay import App
from forebay.errors import ConfigError
from forebay.testing import run_until_idle
from forebay.worker import Worker

NOWHERE = "host=nowhere.invalid"


@pytest.fixture
def shop():
    app = App(NOWHERE)

    @app.job(queue="mail")
    def send(): ...

    return app


DOORS = {
    "worker": lambda app, **options: app.worker(**options),
    "run_worker": lambda app, **options: app.run_worker(until_idle=True, **options),
    "run_until_idle": run_until_idle,
}


WRONG = {
    "queues": (5, b"mail", [], {}, [5], ["a b"], {"mail": "x"}, "mail=x"),
    "group": (5, None, "", "a b", "x" * 500),
    "concurrency": ("4", 2.5, True, 0, [4]),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_wrong_value_is_refused_by_its_name(shop, door):
    """
    Nobody reads `dictionary update sequence element #0 has length 4` as a hint about queues.
    """
    for parameter, values in WRONG.items():
        for value in values:
            with pytest.raises(ConfigError) as caught:
                DOORS[door](shop, **{parameter: value})
            assert caught.value.field == {"queues": "queue"}.get(parameter, parameter), value
            told = caught.value.hint or caught.value.problem.startswith(("must be", "is"))
            assert told, value


def test_an_address_that_is_no_text_is_refused(shop):
    """
    As one that is text and no address.
    """
    for address in (5, b"postgresql://db/shop", ["postgresql://db/shop"]):
        for door in (
            lambda wrong: run_until_idle(shop, wrong),
            lambda wrong: Worker(shop._internals, wrong),
            lambda wrong: App(wrong).worker(),
        ):
            with pytest.raises(ConfigError, match=r"(database address|dsn) .*text"):
                door(address)


def test_an_app_that_is_none_is_refused():
    """
    The name of an app is no app.
    """
    for app in (None, 5, "shop:app"):
        with pytest.raises(ConfigError, match="not an App"):
            run_until_idle(app, NOWHERE)


@pytest.mark.parametrize("queues", [["mail"], "mail=3", {"mail": 2}])
def test_a_worker_serves_the_queues_it_is_given_in_any_form(app, queues):
    """
    A list of names, the short form of the command line, and names with weights.
    """
    ran = []

    @app.job(queue="mail")
    def mail():
        ran.append("mail")

    @app.job(queue="other")
    def other():
        ran.append("other")

    with psycopg.connect(app.dsn) as conn:
        mail.enqueue(conn)
        other.enqueue(conn)
    app.run_worker(queues=queues, until_idle=True)
    assert ran == ["mail"]
    assert run_until_idle(app, queues=["other"]).done == 1
    assert ran == ["mail", "other"]

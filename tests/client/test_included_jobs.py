"""Jobs that modules declare without the app, and the app includes."""

import importlib
import os
import sys

import pytest

from forebay import App, Context, Drain, Jobs, Middleware, Mirror
from forebay.cli._load import load_app
from forebay.errors import ConfigError, InvalidJob, NotIncluded
from forebay.sinks import Sink
from tests.project.test_doors import Items

pytestmark = pytest.mark.usefixtures("no_modules")


@pytest.fixture
def no_modules(tmp_path, monkeypatch):
    """Forget the modules that a test wrote."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


class Nothing(Sink):
    async def open(self): ...

    async def send(self, messages): ...

    async def close(self): ...


def write(folder, **modules):
    for name, text in modules.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()


CIRCLE = {
    "shop__mail": """
import forebay
jobs = forebay.Jobs()

@jobs.job(queue="mail")
def welcome(user_id: int) -> int:
    return user_id

@jobs.cron("0 9 * * *")
@jobs.job(queue="mail")
def digest() -> None: ...
""",
    "shop__orders": """
import forebay
from shop.mail import welcome
jobs = forebay.Jobs()

@jobs.job
def ship(ctx: forebay.Context, order_id: int) -> None:
    from shop.app import app
    welcome.enqueue_now(order_id)
""",
    "shop__app": """
import forebay
from shop import mail, orders
app = forebay.App()
app.include(mail.jobs, orders.jobs)
""",
    "shop____init__": "",
}


def test_modules_declare_and_the_app_includes(tmp_path, database, conn):
    """
    A module imports neither the app nor is imported by others that enqueue through the app: its
    handlers enqueue before the app exists, and the worker of the app runs these jobs.
    """
    write(tmp_path, **CIRCLE)
    mail = importlib.import_module("shop.mail")
    with conn.transaction():
        job_id = mail.welcome.enqueue(conn, 7)
    assert "shop.app" not in sys.modules
    app = importlib.import_module("shop.app").app
    app._internals.use(dsn=database)
    assert sorted(kind.name for kind in app.kinds) == ["digest", "ship", "welcome"]
    assert list(app.schedules) == ["digest"]
    ship = importlib.import_module("shop.orders").ship
    assert ship.enqueue_now(8) > job_id
    app.run_worker(until_idle=True)
    states = {job.kind: job.state for job in app.client().jobs()}
    assert states == {"welcome": "done", "ship": "done"}


def test_a_worker_and_its_children_find_the_handlers(tmp_path, database, workers):
    """
    ``forebay worker shop.app:app``, also for a handler in a process: the child imports the module
    of the app.
    """
    write(tmp_path, **CIRCLE)
    write(
        tmp_path,
        shop__heavy="""
import os, forebay
jobs = forebay.Jobs()

@jobs.job(executor="process", keep_result=True)
def pid() -> int:
    return os.getpid()
""",
        shop__app="""
import forebay
from shop import heavy
app = forebay.App()
app.include(heavy.jobs)
""",
    )
    app = importlib.import_module("shop.app").app
    app._internals.use(dsn=database)
    pid = importlib.import_module("shop.heavy").pid
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    worker = workers.start(app="shop.app:app", environment=environment)
    handle = pid.handle(pid.enqueue_now())
    assert handle.result(30) not in (None, worker.pid)


def test_everything_an_app_declares_can_be_included(database):
    """
    Kinds, queues, schedules, subjects, resources, mirrors, drains, listeners and middlewares: the
    app has them as if it had declared them.
    """
    jobs = Jobs()
    jobs.queue("mail", concurrency=3)

    @jobs.cron("* * * * *")
    @jobs.job(queue="mail")
    def digest() -> None: ...

    @jobs.batch_job(size=7)
    def many(items: list[int]) -> None: ...

    @jobs.subject(queue="crawl")
    def crawl(ctx: Context, url: str) -> None: ...

    @jobs.resource
    def http() -> str:
        return "http"

    @jobs.on_done
    def done(ended: object) -> None: ...

    middleware = Middleware()
    jobs.add_middleware(middleware)
    mirror = Mirror(jobs, "docs", source=Items(), target=Items())
    drain = Drain(jobs, "out", sink=Nothing(), queue="out")
    app = App(database)
    app.include(jobs)
    assert {kind.name for kind in app.kinds} == {"digest", "many", "crawl", "mirror.docs"}
    assert app.queues["mail"].settings.concurrency == 3
    assert list(app.schedules) == ["digest"]
    assert app.mirrors == {"docs": mirror}
    internals = app._internals
    assert internals.drains == {"out": drain}
    assert internals.listeners["done"] == [done]
    assert list(internals.middleware) == [middleware]
    assert [each.queue for each in app.apply()] == ["mail"]
    assert crawl.push(None, "a", url="x").subject == "a"
    assert mirror.status().name == "docs"


def test_what_is_declared_later_is_the_apps_too(database):
    """
    The order of imports does not matter: a module that declares after the ``include`` declares with
    the app.
    """
    outer, inner, app = Jobs(), Jobs(), App(database)
    outer.include(inner)
    app.include(outer)

    @inner.job
    def late() -> None: ...

    assert "late" in app.kinds
    late.enqueue_now()
    assert app.run_worker(until_idle=True).done == 1


def test_the_middlewares_and_settings_of_the_app_hold_for_included_handlers(database, conn):
    """
    A handler asks for its app at each call, so a middleware sees jobs that it enqueues.
    """

    class Stamp(Middleware):
        def enqueue(self, jobs):
            for job in jobs:
                job.headers["tenant"] = "acme"
            yield

    jobs = Jobs()

    @jobs.job
    def ship() -> None: ...

    app = App(database, middleware=[Stamp()])
    app.include(jobs)
    with conn.transaction():
        job_id = ship.enqueue(conn)
    assert app.client().job(job_id)[0].headers == {"tenant": "acme"}


def test_a_kind_declared_twice_names_both_places_and_includes_nothing():
    """
    Of two modules that declare one name neither wins silently, and the app stays as it was.
    """
    first, second, app = Jobs(), Jobs(), App()

    @first.job(name="mail.send")
    def one() -> None: ...

    @second.job
    def other() -> None: ...

    @second.job(name="mail.send")
    def two() -> None: ...

    app.include(first)
    with pytest.raises(ConfigError, match=r"kind mail\.send is declared twice, at .* and ") as said:
        app.include(second)
    here = one.kind.function.__code__
    assert f"{__file__}:{here.co_firstlineno}" in said.value.message
    assert f"{__file__}:{two.kind.function.__code__.co_firstlineno}" in said.value.message
    assert [kind.name for kind in app.kinds] == ["mail.send"]
    with pytest.raises(NotIncluded):
        other.enqueue_now()


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda jobs, n: jobs.queue("mail", concurrency=n), "queue mail is declared twice"),
        (
            lambda jobs, n: jobs.cron(f"{n} * * * *", name="s")(jobs.job(name=f"k{n}")(_plain)),
            "schedule s is declared twice",
        ),
        (
            lambda jobs, n: Mirror(jobs, "docs", source=Items(), target=Items()),
            "declared twice",
        ),
        (
            lambda jobs, n: Drain(jobs, f"d{n}", sink=Nothing(), queue="out"),
            "each message would be sent by only one",
        ),
        (lambda jobs, n: jobs.resource("http")((int, float)[n - 1]), "resource http is declared"),
    ],
    ids=["queue", "schedule", "mirror", "drain", "resource"],
)
def test_any_other_conflict_includes_nothing(declare, words):
    """
    The declarations are compared before the first one is taken.
    """
    first, second, app = Jobs(), Jobs(), App()
    declare(first, 1)
    declare(second, 2)
    second.queue("zzz")
    app.include(first)
    with pytest.raises(ConfigError, match=words):
        app.include(second)
    assert "zzz" not in app.queues


def _plain() -> None: ...


def test_the_same_jobs_are_included_once():
    """
    A second ``include`` does nothing, also through another ``Jobs``.
    """
    inner, outer, app = Jobs(), Jobs(), App()
    inner.add_middleware(Middleware())
    outer.include(inner)
    app.include(outer)
    app.include(outer, inner)
    assert len(app._internals.middleware) == 1


def test_a_handler_belongs_to_one_app():
    """
    A second app is refused, as are an app, a circle and what is no ``Jobs``.
    """
    jobs, app = Jobs(), App(name="shop")
    app.include(jobs)
    with pytest.raises(ConfigError, match="which <app shop> includes already"):
        App().include(jobs)
    with pytest.raises(ConfigError, match="is an App"):
        App().include(app)
    a, b = Jobs(), Jobs()
    a.include(b)
    for circle in (b, a):
        with pytest.raises(ConfigError, match="includes this"):
            circle.include(a)
    with pytest.raises(ConfigError, match=r"not a forebay\.Jobs"):
        app.include("shop.mail")


@pytest.mark.parametrize(
    "use",
    [
        lambda jobs, handler: handler.enqueue_now(),
        lambda jobs, handler: handler.handle(1).status(),
        lambda jobs, handler: jobs.client().jobs(),
        lambda jobs, handler: jobs.handle(1).result(),
        lambda jobs, handler: jobs.dsn,
        lambda jobs, handler: jobs.subject()(_subject).push(None, "a"),
    ],
    ids=["enqueue_now", "handle", "client", "handle of jobs", "dsn", "push"],
)
def test_a_handler_without_its_app_says_so(use, monkeypatch):
    """
    It never takes an address of the environment that the app does not have.
    """
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "host=/nonexistent")
    jobs = Jobs()
    handler = jobs.job(_plain)
    with pytest.raises(NotIncluded, match=rf"^jobs of module {__name__} are not included") as said:
        use(jobs, handler)
    assert "app.include(jobs)" in said.value.hint


def _subject() -> None: ...


def test_what_needs_no_app_works_without(conn):
    """
    A handler can be called, refuses wrong arguments, makes calls and enqueues on a connection.
    """
    jobs = Jobs()

    @jobs.job(queue="mail", tag="t")
    def double(value: int) -> int:
        return 2 * value

    assert double(4) == 8
    assert double.using(delay=3).call(1).options.queue == "mail"
    with pytest.raises(InvalidJob):
        double.call("four")
    with conn.transaction():
        double.enqueue(conn, 1)
        assert double.enqueue_many(conn, [2, 3]) == 2
        assert jobs.enqueue_many(conn, [double.call(4)]) == 1
    tags = "select count(*) from forebay.jobs() j where j.tag = 't'"
    assert conn.execute(tags).fetchone() == (4,)


def test_a_reloaded_module_declares_again(tmp_path, database):
    """
    The kinds of a module that is loaded again replace those of before.
    """
    write(tmp_path, **CIRCLE)
    app = App(database)
    mail = importlib.import_module("shop.mail")
    app.include(mail.jobs)
    app.include(importlib.reload(mail).jobs)
    mail.welcome.enqueue_now(1)
    assert app.run_worker(until_idle=True).done == 1


def test_a_command_for_jobs_names_the_app(tmp_path):
    """
    A command cannot run a ``Jobs``: it says what to name instead.
    """
    write(tmp_path, **CIRCLE)
    with pytest.raises(ConfigError, match=r"not a forebay\.App") as said:
        load_app("shop.mail:jobs", tmp_path)
    assert "includes it" in said.value.hint

"""What a declaration of a follow-up refuses, and what it makes of options."""

from datetime import UTC, datetime
from typing import Any

import pytest

import forebay
from forebay.errors import ConfigError
from forebay.ops.protocol import FollowUpJob


def declared(**follow_ups: dict[str, Any]) -> forebay.App:
    """Return an app with these kinds and their options."""
    app = forebay.App()
    for name, options in follow_ups.items():

        def handler(job_id: int) -> None: ...

        app.job(name=name, **options)(handler)
    return app


def follow_up(app: forebay.App, kind: str, declaration: str = "on_done") -> dict[str, Any]:
    return getattr(app.kinds.get(kind), declaration).as_json()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (print, "neither a handler nor the name of a kind"),
        (7, "neither a handler"),
        (True, "neither a handler"),
        ("no name", "on_done"),
        ("", "on_done"),
    ],
)
def test_something_else_is_refused(given, problem):
    """A listener too: the hint says which declaration it belongs to."""
    with pytest.raises(ConfigError, match=problem):
        declared(work={"on_done": given})


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(2099, 1, 1, tzinfo=UTC)},
        {"expires_at": datetime(2099, 1, 1, tzinfo=UTC)},
        {"unique": forebay.Once("k")},
    ],
)
def test_options_of_a_single_job_are_refused(options):
    """An instant, and a uniqueness mode."""
    app = forebay.App()

    @app.job
    def follow() -> None: ...

    with pytest.raises(ConfigError, match=f"has the option {next(iter(options))}"):
        app.job(name="work", on_dead=follow.using(**options))(lambda: None)


@pytest.mark.parametrize(
    ("kinds", "way"),
    [
        ({"a": {"on_done": "a"}}, "a -> a"),
        ({"a": {"on_dead": "a"}}, "a -> a"),
        ({"a": {"on_done": "b"}, "b": {"on_dead": "a"}}, "a -> b -> a"),
        (
            {"a": {"on_done": "x", "on_dead": "b"}, "b": {"on_done": "c"}, "c": {"on_done": "a"}},
            "a -> b -> c -> a",
        ),
    ],
)
def test_kinds_that_follow_each_other_without_end_are_refused(kinds, way):
    """The error shows the way back."""
    app = declared(**kinds)
    with pytest.raises(ConfigError, match=f"never ends: {way}"):
        _ = app.kinds


def test_a_long_way_is_no_way_back():
    """The follow-up of a follow-up, and one follow-up of several kinds."""
    app = declared(
        a={"on_done": "b", "on_dead": "c"},
        b={"on_done": "c", "on_dead": "d"},
        c={"on_dead": "d"},
        d={},
    )
    assert len(app.kinds) == 4


def test_a_kind_with_unique_keys_or_of_subjects_is_no_follow_up():
    """Each end has its own follow-up; a run of a subject is issued by the subject."""
    app = declared(work={"on_done": "follow"}, follow={"unique_by": ("job_id",)})
    with pytest.raises(ConfigError, match="unique keys"):
        _ = app.kinds
    app = declared(work={"on_done": "follow"})

    @app.subject(name="follow")
    def follow(ctx: forebay.Context) -> None: ...

    with pytest.raises(ConfigError, match="a kind of subjects"):
        _ = app.kinds


def test_the_options_are_those_of_the_kind_when_it_is_known():
    """Whatever was declared first; a kind of another application has none."""
    app = declared(
        work={"on_done": "follow", "on_dead": "foreign"},
        follow={"queue": "mail", "priority": 5, "tag": "t", "expires_in": 60, "max_attempts": 3},
    )
    wanted = {"kind": "follow", "queue": "mail", "priority": 5, "tag": "t", "expires_in": 60.0}
    assert follow_up(app, "work") == wanted
    assert follow_up(app, "work", "on_dead") == {"kind": "foreign"}
    assert FollowUpJob(**wanted).queue == "mail"


def test_the_words_of_other_libraries_are_named():
    """``link`` and ``link_error`` of Celery."""
    for option, instead in (("link", "on_done"), ("link_error", "on_dead")):
        with pytest.raises(ConfigError) as refused:
            declared(work={option: "follow"})
        assert instead in str(refused.value.hint)

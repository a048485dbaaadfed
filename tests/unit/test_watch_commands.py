"""Commands of hints: the application is one that served the queue, and only if it is an address."""

import pytest

from forebay.watch.commands import app_place, known_app, worker_command

APPS = [
    {"app": "shop.new:app", "group": "default", "queues": ["mail"]},
    {"app": "books:app", "group": "accounts", "queues": ["orders"]},
    {"app": "shop.old:app", "group": "default", "queues": ["mail", "orders"]},
]


@pytest.mark.parametrize(
    ("queue", "group", "place"),
    [
        ("mail", "default", "shop.new:app"),
        ("orders", "default", "shop.old:app"),
        ("orders", "accounts", "books:app"),
        ("mail", "accounts", "MODULE:APP"),
        ("other", "default", "MODULE:APP"),
        (None, "default", "MODULE:APP"),
    ],
)
def test_the_newest_that_served_the_queue_is_named(queue, group, place):
    assert known_app({"apps": APPS}, queue, group) == place


def test_without_a_queue_the_only_one_is_named():
    assert known_app({"apps": APPS[:1] * 2}) == "shop.new:app"
    assert known_app({"apps": []}) == "MODULE:APP"


@pytest.mark.parametrize(
    "said",
    [
        None,
        "",
        "shop",
        "the shop of 1999",
        "shop:app; rm -rf ~",
        "shop:app\n",
        "--help:app",
        "../shop:app",
        "shop:$(id)",
        "shöp:app",
    ],
)
def test_what_is_no_address_is_in_no_command(said):
    """A worker says what it likes of itself, and a person copies the command."""
    assert app_place(said) == "MODULE:APP"


def test_a_command_names_queue_and_group_for_a_shell():
    assert worker_command("shop:app") == "forebay worker shop:app"
    assert (
        worker_command("shop:app", "it's", "a b")
        == "forebay worker shop:app --queue 'it'\"'\"'s' --group 'a b'"
    )

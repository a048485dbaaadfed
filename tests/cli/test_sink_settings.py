"""--set of ``forebay drain`` and ``forebay endpoints``: one reader."""

import pytest

from forebay.cli.options import sink_settings
from forebay.errors import ConfigError

#: Settings as they come from the shell, and what the sink gets.
READ = {
    'tasks={"order.created": "shop.ship"}': {"order.created": "shop.ship"},
    'secrets=["env:KEY", "file:/run/key"]': ["env:KEY", "file:/run/key"],
    "maxlen=1000": 1000,
    "timeout=2.5": 2.5,
    "create=false": False,
    "stream=null": None,
    'queue="42"': "42",
    'queue="[x"': "[x",
    "url=redis://u:p@h/0?a=b": "redis://u:p@h/0?a=b",
    "url=": "",
    "subject={kind}": "{kind}",
    "subject={header:tenant}.{kind}": "{header:tenant}.{kind}",
    "subject={{kind}}": "{{kind}}",
    "queue=NaN": "NaN",
    "queue=-Infinity": "-Infinity",
    "queue=007": "007",
    "queue=True": "True",
    "queue=" + "9" * 5000: "9" * 5000,
}

#: What begins as JSON and is none, as where the shell took its quotes.
REFUSED = [
    'tasks={"a": "shop.ship"',
    "tasks={order.created: shop.ship}",
    "tasks={'a': 'b'}",
    "tasks={",
    "secrets=[env:KEY]",
    "secrets=[",
    "secrets=[NaN]",
    'queue="a',
    "tasks=" + "[" * 100_000,
]


@pytest.mark.parametrize(("text", "value"), READ.items(), ids=lambda one: str(one)[:30])
def test_json_is_read_as_json_and_what_is_none_is_a_text(text, value):
    """Also a template in braces is a text; NaN and Infinity are, since they are no JSON."""
    name = text.partition("=")[0]
    found = sink_settings([text])
    assert found == {name: value}
    assert type(found[name]) is type(value)


@pytest.mark.parametrize("text", REFUSED, ids=lambda one: one[:30])
def test_json_that_is_none_is_refused_with_what_to_write(text):
    """The message does not repeat the value, which may be a secret."""
    name, _, value = text.partition("=")
    with pytest.raises(ConfigError, match=rf"--set {name} begins as JSON") as caught:
        sink_settings([text])
    assert "Quote JSON for the shell" in caught.value.hint
    assert len(value) < 4 or value[:200] not in str(caught.value)


def test_the_commands_have_one_reader(forebay):
    """What one refuses the others refuse, with exit code 2 and nothing done."""
    url = "url=https://a.example/hook"
    forebay("endpoints", "create", "shop", "--sink", "http", "--set", url)
    for command in (
        ("drain", "--queue", "q", "--sink", "http", "--set", url),
        ("endpoints", "create", "more", "--sink", "http", "--set", url),
        ("endpoints", "alter", "shop"),
    ):
        for text in (*REFUSED[:3], "url", "=x"):
            answer = forebay(*command, "--set", text)
            assert answer.code == 2, answer
            assert "--set" in answer.err
            assert "Quote JSON" in answer.err or "not NAME=VALUE" in answer.err
        # It came as a list to the sink, which names its place.
        answer = forebay(*command, "--set", 'secrets=["plain"]')
        assert "not a reference to a secret" in answer.err
    assert [one["name"] for one in forebay("endpoints", "list", "--json").json] == ["shop"]

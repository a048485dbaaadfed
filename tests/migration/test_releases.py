"""What was released stays as it is."""

from dataclasses import replace

from forebay.sql import migrations
from tests.support.released import problems, protocol, released


def test_what_was_released_is_what_is_here(server, template):
    """
    No migration of a release has changed, and what its workers call is there until a post migration
    takes it away.
    """
    assert problems(released(), migrations(), protocol(server.dsn(template))) == []


def test_a_change_of_what_was_released_would_be_noticed(server, template):
    """
    A migration that was edited, and a function of the protocol that is gone or has changed, are
    named; a post migration may take one away.
    """
    steps, spoken = list(migrations()), protocol(server.dsn(template))
    assert {"forebay.seal_v1()", "forebay.retain_v1(bigint)"} <= spoken.keys()
    record = {
        "1.0": {
            "migrations": {f"{step.version:04}_{step.name}": step.checksum for step in steps},
            "protocol": spoken,
        }
    }
    assert problems(record, steps, spoken) == []

    edited = [replace(steps[0], checksum="0" * 64), *steps[1:]]
    assert problems(record, edited, spoken) == ["0001_initial of 1.0 was changed"]
    fewer = {name: result for name, result in spoken.items() if name != "forebay.seal_v1()"}
    assert problems(record, steps, fewer) == [
        "forebay.seal_v1() of 1.0 is gone or returns something else"
    ]
    post = replace(steps[-1], version=len(steps) + 1, name="post_drop_seal_v1")
    assert problems(record, [*steps, post], fewer) == []

"""Texts that UTF-8 or PostgreSQL refuses, in all that a handler can say."""

import random

import forebay
from forebay import Cancel, Dead, Retry, Snooze

#: What UTF-8 cannot encode, or PostgreSQL cannot store, or terminals act on.
SIGNS = [
    "\udce9", "\ud800", "\udfff", "\x00", "\\u0000", "\\", "'", '"', "\n", "\r", "\x1b[2J", "\x7f",
    "é", "\U0001f600", "\u202e", "\ufffe", "\uffff", "a", "%s", "{", "$1", "\ud83d\ude00",
]  # fmt: skip


def hostile(rng: random.Random) -> str:
    """Return a text of signs that are refused somewhere."""
    return "".join(rng.choices(SIGNS, k=rng.choice([1, 2, 5, 40, 6000])))


class HostileError(Exception):
    """An error with hostile text in each of its parts."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.add_note(text)


def raised(rng: random.Random) -> Exception:
    """Return an error with hostile text in its message, notes, type, module, cause or members."""
    made = [
        lambda: HostileError(hostile(rng)),
        lambda: type(hostile(rng).replace("\x00", "") or "E", (Exception,), {})(hostile(rng)),
        lambda: type("E", (Exception,), {"__module__": hostile(rng)})(hostile(rng)),
        lambda: ExceptionGroup(hostile(rng), [HostileError(hostile(rng))]),
        lambda: forebay.JobCancelled(1, reason=hostile(rng)),
        lambda: KeyError(hostile(rng)),
        lambda: OSError(2, "No such file", hostile(rng)),
        lambda: UnicodeEncodeError("utf-8", hostile(rng), 0, 1, hostile(rng)),
    ]
    return rng.choice(made)()


def answer(rng: random.Random) -> object:
    """Return what a handler returns, or raise, with hostile text."""
    text = hostile(rng)
    made = [
        text, {text: text}, [text], {"a": {"b": [text]}}, text.encode("utf-8", "replace"),
        Retry(reason=text), Dead(text), Cancel(text), Snooze(0, reason=text),
    ]  # fmt: skip
    chosen = rng.randrange(len(made) * 2)
    if chosen >= len(made):
        raise raised(rng)
    return made[chosen]

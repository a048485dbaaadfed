"""One word for each idea, and sentences that are read once.

Decision records are left out: each tells what was decided in the words of its day. Decision 0038
lists the old words.
"""

import io
import keyword
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Words that had a private or a second meaning here: what to say instead, and the names that use
#: the word as everybody does.
WORDS: dict[str, tuple[str, set[str]]] = {
    "bell bells ring rings rung": ("wake-up, notify", set()),
    "beat beats heart hearts": ("heartbeat", set()),
    "bounce bounced": ("append again", set()),
    "bury buried": ("write a dead letter", set()),
    "caller callers": ("driver, for an adapter", {"_CALLER", "caller_since"}),
    "chain chained chains": ("key queue", {"_CHAIN_MAX", "_chain_text", "load_cert_chain"}),
    "contestant contestants player players crew": ("engine, runner, workers", set()),
    "crowd deaf pressed": ("open leases, without notifications, saturated", set()),
    "desk desks": ("dispatch lane", set()),
    "elsewhere": ("foreign session", set()),
    "fate fates lot stage stages": ("state", set()),
    "far": ("idle poll interval", set()),
    "gate gates": ("limiter", set()),
    "hear heard hears ask asks tell tells told": ("read, call, send, report", set()),
    "home": ("same cluster", {"home", "HOME", "XDG_CACHE_HOME"}),
    "intent intents": ("uniqueness mode", set()),
    "lend lender lending lent": ("handler connection", set()),
    "lookout vacancy vacant": ("leader, without a leader", set()),
    "pace paced": ("limits", set()),
    "pins": ("held segments", set()),
    "post posts": (
        "leader, leadership",
        {"POST", "__post_init__", "is_post", "post_migrate", "posts", "post"},  # migrations, HTTP
    ),
    "register registers": (
        "flag sequence",
        {"register", "register_at_fork", "register_queue", "register_task"},
    ),
    "room": ("free slots, reserve, limit", set()),
    "stranger strangers": ("other session", set()),
    "surroundings": ("process state", set()),
    "survival": ("lifetime", set()),
    "sync syncs synced": (
        "mirror; sync means: not async",
        {
            "SyncConnection",
            "SyncPsycopgConnector",
            "async_to_sync",
            "_sync",
            "handler_transaction_sync",
            "settle_on_sync",
            "sync",
            "sync_engine",
            "sync_pool",
            "sync_runner",
            "sync_to_async",
        },
    ),
    "tally tallies": ("counters", set()),
    "twin twins": ("mutant; the asynchronous form", set()),
    "undertaker": ("cleanup process", set()),
    "unordered": ("sharded", {"_UNORDERED", "unordered"}),  # sets have no order
    "upkeep": ("maintenance", set()),
}

#: Phrases that make a reader go back to the beginning of the sentence, and private words in prose.
PHRASES = [
    r"\bso (?:long|many|much|often|seldom|few|soon)\b(?! (?:as|that)\b)",
    r"\b(?:whoever|whomever|somebody|nobody|everybody)\b",
    r"\bof (?:its|their|his|an|our|your) own\b",
    r"\bof (?:theirs|ours|yours)\b",
    r"\b(?:goes|went|go|going) on\b",
    r"\bbelongs? into\b",
    r"\b(?:leave|left) away\b",
    r"\bis no (?:address|name|number|function|job|connection)\b",
    r"\bfor ever\b",
    r"\bwithout a word\b",
    r"\bat home\b",
    r"\bhears? of\b",
    r"\b(?:is|are) (?:asked|told)\b",
    r"\bsynchronisations?\b",
    r"\bupkeep\b",
    r"\b(?:put|puts) (?:off|aside)\b",
    r"\b(?:kept|handed|hands|hand) back\b",
    r"\bstrangers?\b",
    r"\bin vain\b",
    r"\bunordered queues?\b",
    r"\bthe (?:desk|bell|gate of|lookout)\b",
    r"\bbur(?:y|ies|ied)\b",
    r"\btall(?:y|ies)\b",
]

#: Where a phrase is right: part of a name that is not ours, or of a title that is quoted.
ALLOWED = ("user nobody", '"nobody"', "`nobody`", "``nobody``", "account nobody")


def texts() -> Iterator[tuple[str, str]]:
    """What people read: documentation, and code with its comments."""
    folders = ["docs", "src", "bench", "examples"]
    files = [
        *ROOT.glob("*.md"),
        *(file for folder in folders for file in (ROOT / folder).rglob("*")),
    ]
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        if (
            file.suffix in {".md", ".py", ".sql"}
            and file.is_file()
            and not name.startswith("docs/decisions/")
            and ".egg-info" not in name
        ):
            yield name, file.read_text(encoding="utf-8")


def names(name: str, text: str) -> Iterator[str]:
    """The names in a file's code."""
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                yield token.string
    elif name.endswith(".sql"):
        code = re.sub(r"'(?:[^']|'')*'", "", re.sub(r"--[^\n]*", "", text))
        yield from re.findall(r"[A-Za-z_]\w*", code)


def test_no_name_uses_a_private_word():
    """
    A name of the code says the standard term; a word has one meaning.
    """
    found = defaultdict(set)
    banned = {word: entry for words, entry in WORDS.items() for word in words.split()}
    for file, text in texts():
        for used in names(file, text):
            for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", used):
                instead, usual = banned.get(part.lower(), ("", {used}))
                if used not in usual:
                    found[f"{used}: {instead}"].add(file)
    assert not found, "\n".join(f"{what} ({', '.join(sorted(in_))})" for what, in_ in found.items())


def test_no_sentence_has_to_be_read_twice():
    """
    The phrases of the old texts stay out of documentation, help, messages, docstrings and comments.
    """
    pattern = re.compile("|".join(PHRASES), re.IGNORECASE)
    found = [
        f"{file}:{number}: {match[0]!r} in {line.strip()[:100]}"
        for file, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        for match in pattern.finditer(line)
        if not any(usual in line for usual in ALLOWED)
    ]
    assert not found, "\n".join(found)

"""Functions take several locks in one order, so that no two of them wait in a circle."""

import re
from collections import defaultdict
from importlib.resources import files

import pytest

FUNCTIONS = files("forebay.sql") / "schema" / "functions"

#: What a statement takes: a lock by its name or by a function, a table, or what a call takes.
TAKES = re.compile(
    r"lock table (?:only )?forebay\.(?P<table>\w+)(?P<more>(?:, forebay\.\w+)*)"
    r"|forebay\._try_lock\('(?P<tried>\w+)'\)"
    r"|forebay\.(?P<call>_?\w+)\("
    r"|(?:insert into|delete from|update) forebay\.(?P<written>queue_limits|key_limits|queue_shards"
    r"|dead_retention|queue_attempts|queue_notices|applied_setting)\b"
    r"|-- include: (?P<include>lock_lane)"
)

#: Locks with numbers: two of one family are taken in the order of their numbers.
FAMILIES = {"_lock_lane": "lane", "_lock_limiter": "limiter", "_lock_keys": "keys"}

#: They change limits of keys in the queue of deliveries only, after the row of the endpoint: they
#: take the row of the queue's limits before that of the key, and no other lock of settings.
ENDPOINTS = {
    "create_endpoint", "alter_endpoint", "drop_endpoint", "enable_endpoint", "reset_endpoint",
    "disable_endpoint", "report_deliveries_v1", "sweep_endpoints_v1", "configure",
}  # fmt: skip


#: Workers report what opens and closes breakers, and no operator's transaction may hold them up:
#: they take the rows of the breakers, then the row of the queue's limits before that of the key.
REPORTS = {"report_breakers_v1"}

#: Each call does one of the steps that its text lists.
ONE_STEP = {"maintain"}

#: Pairs whose two orders are on two branches, which the text of a function does not tell, and why.
BRANCHES = {
    ("keys", "lock_successor"): "a claim is of one sort of lanes",
    (
        "lane",
        "lock_gate_",
    ): "a claim passes the gate before the lock of the lane, if that is not free",
    ("limiter", "lock_polls"): "a poll tries the lock, waits for none, and gives it back at once",
    ("lane", "lock_polls"): "as above",
    ("lock_sweep", "queue_group"): "dropping a queue cancels, which takes no lock; it moves no job",
    ("lock_promotion", "queue_group"): "dropping a queue cancels, as above",
    ("lock_cancellation", "queue_group"): "dropping a queue cancels without a token",
    (
        "lane",
        "queue_group",
    ): "as above, and closing a group deletes it in a call that fences no lane",
}


def sources() -> dict[str, str]:
    """Return the body of each function by its name, without comments except inclusions."""
    found = {}
    for folder in FUNCTIONS.iterdir():
        for file in folder.iterdir() if folder.is_dir() else ():
            if not file.name.endswith(".sql"):
                continue
            text = re.sub(r"--(?! include:).*", "", file.read_text())
            text = re.sub(r"\b(?:hint|message) = (?:format\()?'(?:[^']|'')*'", "", text)
            for name, body in re.findall(
                r"create function forebay\.(\w+)\(.*?\$\$(.*?)\$\$;", text, re.DOTALL
            ):
                found[name] = found.get(name, "") + body
    return found


def sequences(bodies: dict[str, str]) -> dict[str, list[str]]:
    """Return what each function and what it calls takes, in the order of the text, each once."""
    done: dict[str, list[str]] = {}

    def of(name: str) -> list[str]:
        if name in done:
            return done[name]
        done[name] = []
        taken: dict[str, None] = {}
        for match in TAKES.finditer(bodies.get(name, "")):
            if match["table"]:
                names = [match["table"], *re.findall(r"forebay\.(\w+)", match["more"])]
            elif match["include"]:
                names = ["lane"]
            elif match["tried"]:
                names = [f"try {match['tried']}"]
            elif match["written"]:
                names = [f"rows of {match['written']}"]
            elif match["call"] in FAMILIES:
                names = [FAMILIES[match["call"]]]
            elif match["call"].startswith("_try_lock") or match["call"] == name:
                continue  # Nobody waits for it.
            else:
                names = of(match["call"])
            taken.update(dict.fromkeys(names))
        done[name] = list(taken)
        return done[name]

    for name in bodies:
        of(name)
    return done


def circles(taken: dict[str, list[str]]) -> list[list[str]]:
    """Return pairs of locks that two functions take in two orders, with the functions.

    A lock that both have taken before protects the pair: only one of the two works at a time.
    """
    orders: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(dict)
    for function, all_locks in taken.items():
        if function in ONE_STEP:
            continue
        locks = [lock.replace("try ", "lock_") for lock in all_locks if "rows of" not in lock]
        waits = {lock for lock in all_locks if not lock.startswith("try ")}
        for at, first in enumerate(locks):
            for second in locks[at + 1 :]:
                if second in waits:
                    alone = {lock for lock in locks[:at] if lock.startswith("lock_")}
                    orders[first, second][function] = alone
    return [
        [first, second, one, two]
        for (first, second), functions in orders.items()
        if first < second and (first, second) not in BRANCHES
        for one, before_one in functions.items()
        for two, before_two in orders.get((second, first), {}).items()
        if not before_one & before_two
    ]


def without_settings(taken: dict[str, list[str]]) -> list[str]:
    """Return the public functions that write settings of queues before the settings lock."""
    wrong = []
    for function, locks in taken.items():
        if function.startswith("_") or function in ENDPOINTS | REPORTS:
            continue
        if any(lock.startswith("rows of") for lock in locks) and locks[0] != "lock_settings":
            wrong.append(function)
    return wrong


def test_no_two_functions_take_two_locks_in_two_orders():
    """Calls that change settings take turns; all others take their locks in one order."""
    taken = sequences(sources())
    assert sum(len(locks) > 1 for locks in taken.values()) > 20
    assert circles(taken) == []


def test_whoever_writes_settings_of_queues_takes_the_settings_lock_first():
    """Except what changes limits of endpoints, and reports of workers."""
    taken = sequences(sources())
    assert without_settings(taken) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("limit_queue", "perform forebay._lock_settings();", ""),
        ("drop_queue", "perform forebay._lock_settings();", "lock table forebay.queue_group;"),
    ],
)
def test_a_function_without_it_is_found(name, old, new):
    """The guard of the test above."""
    bodies = sources()
    assert old in bodies[name]
    bodies[name] = bodies[name].replace(old, new)
    assert name in without_settings(sequences(bodies))


def test_two_orders_are_found():
    """The guard of the first test."""
    bodies = {
        "one": "lock table forebay.a in share mode; perform forebay.other();",
        "other": "lock table only forebay.b",
        "two": "perform forebay.other(); lock table forebay.a",
    }
    assert circles(sequences(bodies)) == [["a", "b", "one", "two"]]

"""The metrics by kind, tag and priority: they are those of the counters, their labels are bounded
by a setting, no counter of them goes back, and a scrape of them visits no job.
"""

import re
import shutil
import subprocess

import pytest

from forebay.watch.metrics import Exporter, Family
from tests.support.engine import Reader, enqueue, enqueue_many, one
from tests.support.mutant import break_function, violation

ENDS = "forebay_job_ends_by_tag_total"
JOBS = "forebay_jobs_by_tag"
STATES = ("scheduled", "ready", "claimed", "retrying")
OUTCOMES = ("done", "failed", "dead", "expired", "cancelled", "snoozed", "released", "lost")


def allow(conn, most):
    conn.execute("select forebay.configure('metric_label_sets', %s)", [most])


def fold(conn):
    conn.execute("select forebay.fold_v1(1000000, true)")


def scraped(database, name=None):
    """Return the samples of a scrape by name and labels, those of one metric by labels."""
    found = {}
    # Not splitlines(): a tag may have any other character that ends a line.
    for line in Exporter(database, min_seconds=0).text().split("\n"):
        if line and not line.startswith("#"):
            place, value = line.rsplit(" ", 1)
            metric, _, labels = place.partition("{")
            pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)
            texts = tuple(re.sub(r"\\(.)", r"\1", text) for _, text in pairs)
            found.setdefault(metric, {})[texts] = float(value)
    return found if name is None else found.get(name, {})


def some_life(database, conn):
    """Jobs of two queues, kinds, tags and priorities in every state and with several ends."""
    for queue in ("mail", "shop"):
        for kind in ("work", "send"):
            for tag in (None, "import", "web"):
                for priority in (10, 100):
                    which = {"kind": kind, "queue": queue, "priority": priority}
                    if tag is not None:
                        which["tag"] = tag
                    enqueue_many(conn, [which] * 6 + [{**which, "delay": 3600}] * 2)
        with Reader(database, queue) as reader:
            first = reader.claim(7, priority=10)
            dead = {"offset": 2, "outcome": "dead", "reason": "permanent", "error": {"type": "E"}}
            reader.settle(first.claim_no, [1], ended=[dead])
            reader.finish(reader.claim(5, priority=100))


def test_the_numbers_are_those_of_stats(database, conn):
    """Of every label set: waiting jobs by state, and ends by outcome; cancelled ones left out."""
    allow(conn, 100)
    some_life(database, conn)
    for state in ("ready", "scheduled"):
        conn.execute(
            "select forebay.change_jobs('cancel', jsonb_build_object('queue', 'mail', 'tag',"
            " 'web', 'state', %s::text))",
            [state],
        )
    fold(conn)
    lines = conn.execute(
        "select queue, group_name, kind, coalesce(tag, ''), priority::text,"
        " to_jsonb(s) from forebay.stats() s"
    ).fetchall()
    assert len(lines) == 24
    for name, numbers in ((JOBS, STATES), (ENDS, OUTCOMES)):
        found = scraped(database, name)
        assert found == {
            (*place, number): float(line[number]) for *place, line in lines for number in numbers
        }
    web = [line for *_, line in lines if (line["queue"], line["tag"]) == ("mail", "web")]
    assert [line["scheduled"] + line["ready"] for line in web] == [0] * 4
    assert all(sum(line[state] for *_, line in lines) for state in ("claimed", "done", "dead"))


def test_without_the_setting_no_tag_is_shown(database, conn):
    """Tags are free text, and who scrapes has no login."""
    some_life(database, conn)
    fold(conn)
    found = scraped(database)
    assert found["forebay_job_ends_total"]
    assert {ENDS, JOBS}.isdisjoint(found)
    assert not any("import" in labels for samples in found.values() for labels in samples)


def test_label_sets_beyond_the_setting_are_added_up_for_each_queue(database, conn):
    """The first ones keep their names; sums over a queue stay what they were."""
    allow(conn, 3)
    some_life(database, conn)
    fold(conn)
    sums = dict(
        conn.execute("select queue, sum(ready)::int from forebay.stats() group by 1").fetchall()
    )
    found = scraped(database)
    names = {labels[:5] for labels in found[JOBS]}
    assert len(names) == 3 + 2
    assert {labels for labels in names if labels[2:] == ("other",) * 3} == {
        (queue, "default", "other", "other", "other") for queue in ("mail", "shop")
    }
    for queue, ready in sums.items():
        shown = [v for (at, *_, state), v in found[JOBS].items() if (at, state) == (queue, "ready")]
        assert sum(shown) == ready
    assert found["forebay_label_sets_folded"][JOBS,] == 21
    assert found["forebay_label_sets_folded"][ENDS,] == 21
    assert found["forebay_label_sets_folded"]["forebay_jobs",] == 0


@pytest.mark.slow
def test_a_raised_setting_names_more_and_a_lowered_one_fewer(database, conn):
    """In the order in which they came; the names that were there stay."""

    def named():
        fold(conn)
        return {at[:5] for at in scraped(database, JOBS) if at[2] != "other"}

    allow(conn, 2)
    some_life(database, conn)
    two = named()
    allow(conn, 5)
    five = named()
    assert two < five
    assert (len(two), len(five)) == (2, 5)
    allow(conn, 2)
    assert named() == two
    allow(conn, 5)
    assert named() == five


def goes_back(database, conn):
    """Let tags come, and a queue with named ones go, while jobs end; then others come.

    No counter of a queue that stays may go back from scrape to scrape.
    """
    allow(conn, 4)
    before = {}

    def look():
        nonlocal before
        fold(conn)
        after = scraped(database, ENDS)
        for at, value in before.items():
            if at[0] != "gone" or "gone" in {place[0] for place in after}:
                assert after.get(at, -1.0) >= value, at
        before = dict(after)

    def work(queue, *tags):
        enqueue_many(conn, [{"kind": "work", "queue": queue, "tag": tag} for tag in tags])
        with Reader(database, queue) as reader:
            reader.finish(reader.claim(100))
        look()

    work("gone", "a", "b", "c")
    work("stays", "a", "b", "c", "d")
    work("stays", "b", "e", "e")
    conn.execute("select forebay.drop_queue('gone', force => true)")
    while one(conn, "select forebay.close_groups()"):
        pass
    left = one(conn, "select count(*) from forebay.counter_cell where queue = 'gone'")
    if left:
        pytest.fail("the queue is still there")
    work("stays", "c")
    work("new", "a", "z")
    named = {at[:4] for at in before if at[3] != "other"}
    assert ("new", "default", "work", "a") in named
    assert ("stays", "default", "work", "d") not in named


def test_no_counter_goes_back(database, conn):
    """What becomes free is for new label sets, and no old one moves out of ``other``."""
    goes_back(database, conn)


def test_without_that_rule_one_would(database, conn):
    break_function(
        database, "_unplaced_cells", ("c.place < 0 and c.place > -p_most", "c.place < 0")
    )
    with violation():
        goes_back(database, conn)


def test_a_counter_keeps_its_first_values_and_a_gauge_its_largest():
    """A value that grows past another one does not take its place."""

    def named(sort, numbers):
        samples = [((f"q{n}",), value) for n, value in enumerate(numbers)]
        family = Family("forebay_x", sort, "X.", ("queue",), samples)
        return dict(family.within(3)), family.kept(3)[1]

    assert named("counter", [1.0, 2.0, 3.0, 4.0]) == ({("q0",): 1, ("q1",): 2, ("other",): 7}, 2)
    assert named("counter", [1.0, 2.0, 9.0, 9.0]) == ({("q0",): 1, ("q1",): 2, ("other",): 18}, 2)
    assert named("gauge", [1.0, 2.0, 3.0, 4.0]) == ({("q3",): 4, ("q2",): 3, ("other",): 3}, 2)


def test_queues_beyond_the_cap_are_ordered_by_their_age(database, conn):
    """So a busy young queue does not push an old one into ``other``."""
    for queue, jobs in (("zoo", 1), ("mid", 2), ("apt", 9)):
        enqueue_many(conn, [{"kind": "work", "queue": queue}] * jobs)
        with Reader(database, queue) as reader:
            reader.finish(reader.claim(100))
        fold(conn)
    text = Exporter(database, values_max=2).text()
    for line in (
        'forebay_queue_claims_total{queue="zoo",group="default"} 1',
        'forebay_queue_claims_total{queue="other",group="other"} 11',
        'forebay_job_ends_total{queue="zoo",group="default",kind="work",outcome="done"} 1',
        'forebay_job_ends_total{queue="other",group="other",kind="other",outcome="done"} 11',
        'forebay_job_wait_seconds_count{queue="zoo",group="default"} 1',
        'forebay_job_wait_seconds_count{queue="other",group="other"} 11',
        'forebay_label_sets_folded{metric="forebay_job_wait_seconds"} 2',
    ):
        assert line in text.split("\n"), line


HOSTILE = [
    'say "hi"',
    "back\\slash",
    "\\",
    '"',
    "naïve ☃ 日本",
    "line\u2028sep",
    "other",
    "a,b}",
]


def test_a_tag_may_have_any_character(database, conn):
    """Whoever enqueues chooses it; Prometheus reads the text, and each tag is itself."""
    allow(conn, 100)
    enqueue_many(conn, [{"kind": "work", "tag": tag} for tag in HOSTILE])
    enqueue(conn, kind="work")
    with Reader(database):  # Opens the group.
        pass
    fold(conn)
    found = scraped(database, JOBS)
    assert {at[3] for at in found} == {*HOSTILE, ""}
    assert all(found["default", "default", "work", tag, "100", "ready"] == 1 for tag in HOSTILE)
    if shutil.which("promtool"):
        told = subprocess.run(
            ["promtool", "check", "metrics"],
            input=Exporter(database).text(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


@pytest.mark.slow
def test_more_tags_than_counters_are_other(database, conn):
    """Two thousand label sets of a group are counted; further ones add up, and so do the sums."""
    allow(conn, 10)
    jobs = [{"kind": "work", "tag": f"t{n}"} for n in range(2100)]
    enqueue_many(conn, jobs)
    with Reader(database):
        pass
    fold(conn)
    found = scraped(database)
    ready = {at: value for at, value in found[JOBS].items() if at[-1] == "ready"}
    assert (len(ready), sum(ready.values())) == (11, 2100)
    # 1,990 that are counted apart, and one for the rest.
    assert found["forebay_label_sets_folded"][JOBS,] == 1991


def pages(conn):
    """Return the pages that one read of the label sets touches."""
    query = "explain (analyze, buffers, format json) select forebay._measured_label_sets()"
    for _ in range(2):
        (plan,) = conn.execute(query).fetchone()
    return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]


def grows_with_jobs(database, conn):
    """Compare a hundred waiting and ended jobs to twenty thousand of each."""
    allow(conn, 100)

    def more(number):
        for tag in ("a", "b"):
            conn.execute(
                "select forebay.enqueue_many((select jsonb_agg(jsonb_build_object('kind', 'work',"
                " 'queue', 'mail', 'tag', %s::text)) from generate_series(1, %s)))",
                [tag, number],
            )
        with Reader(database, "mail") as reader:
            while (batch := reader.claim(min(number, 10_000))).jobs:
                reader.finish(batch)
        fold(conn)

    more(100)
    few = pages(conn)
    more(20_000)
    # Neither jobs that nobody has folded yet.
    conn.execute(
        "select forebay.enqueue_many((select jsonb_agg(jsonb_build_object('kind', 'work',"
        " 'queue', 'mail')) from generate_series(1, 20000)))"
    )
    assert pages(conn) < few + 30
    return one(conn, "select forebay._measured_label_sets()")


@pytest.mark.slow
@pytest.mark.usual("reads pages as the owner")
def test_a_scrape_of_them_visits_no_job(database, conn):
    assert len(grows_with_jobs(database, conn)) == 2


@pytest.mark.parametrize("value", [-1, 1001, 1.5, "many"])
def test_the_setting_has_bounds(conn, value):
    with pytest.raises(Exception, match=r"metric_label_sets: value .* is not an integer within"):
        allow(conn, value)

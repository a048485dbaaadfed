"""Random sequences of what can happen to jobs with keys, compared with a small model of what is
promised of them.

The machine drives a real server: producers whose transactions overlap, leases that claim, settle
and are lost, operators who pause keys, change limits and decide about dead letters. The model
asserts after each claim that it was allowed, and after each step that nothing waits without a
reason for a claim to look at it. At the end everything is run: each job has to end. Time stands
still unless the machine moves it. Short by default; more ``--stress-seconds`` than 5 make it longer
in proportion.
"""

import sys
from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from forebay.testing.copies import OWN_COPY
from tests.support import key_model
from tests.support.engine import STEPS, connect, one, small_segments
from tests.support.fix_db import fresh_database
from tests.support.key_acts import Given, KeyActs
from tests.support.key_model import AGAIN, KeyLimits, Limits
from tests.support.mutant import break_function, violation

#: The ordering key and the limit key of a job.
KEYS = [("a", None), ("b", None), (None, "s"), (None, "t"), ("a", None), (None, "s")]
if key_model.BOTH_KEYS:
    KEYS += [("a", "s"), ("b", "s"), ("a", "t")]


GIVEN = st.builds(
    Given,
    st.sampled_from(KEYS),
    st.sampled_from(["work", "strict"]),
    st.sampled_from([100, 100, 100, 50]),
    st.sampled_from([0, 0, 0, 0, 5, 60]),
    st.sampled_from([None, None, None, 400]),
    st.sampled_from([20, 20, 2]),
    st.sampled_from([False, False, False, True]),
)
JOBS = st.lists(GIVEN, min_size=1, max_size=4)
OUTCOMES = st.sampled_from(["done", "done", "done", "done", "dead", "dead", "cancelled", *AGAIN])


def _acts() -> st.SearchStrategy:
    """The acts of the machine, each as often as its weight, with what they are given."""
    some, flag = st.integers(0, 9), st.booleans()
    keys = st.sampled_from([("ordering", "a"), ("ordering", "b"), ("limit", "s"), ("limit", "t")])
    ends = st.lists(st.tuples(some, OUTCOMES), min_size=1, max_size=4)
    limits = st.builds(
        Limits,
        st.sampled_from([None, None, 3]),
        st.sampled_from([None, 1, 1, 2]),
        st.sampled_from([None, None, (0.5, 4)]),
        st.sampled_from([None, None, (0.1, 2)]),
    )
    how = st.sampled_from(["ready", "ready", "ready", "ready", "any", "lost"])
    acts = [
        (4, "enqueue_and_commit", JOBS),
        (4, "enqueue_in_a_transaction", some, JOBS),
        (1, "begin"),
        (
            4,
            "end_transaction",
            some,
            st.sampled_from(["commit", "commit", "rollback", "two phases"]),
        ),
        (8, "claim", st.integers(0, 2), some, st.sampled_from([1, 2, 5, 100]), how),
        (3, "claim_everything", st.integers(0, 2)),
        (9, "settle", some, ends, flag),
        (2, "finish", some),
        (4, "release_stopped", some, st.integers(1, 3)),
        (1, "release_unstarted", some, some, st.integers(1, 3)),
        (1, "settle_in_a_transaction", some, some),
        (2, "end_handler", some, st.sampled_from([True, True, False])),
        (2, "start_suspect", some),
        (2, "lose_lease", some, st.sampled_from(["revoke", "revoke", "close"])),
        (2, "cancel", st.integers(0, 50), flag),
        (2, "pause", keys, st.sampled_from([0, 0, 0, 20]), st.sampled_from([None, 10, 300])),
        (2, "resume", some),
        (2, "decide_about_a_dead_letter", some, flag),
        (2, "limit", limits),
        (
            2,
            "limit_key",
            st.sampled_from(["s", "s", "t"]),
            st.builds(
                KeyLimits,
                st.sampled_from([None, None, 1, 3]),
                st.sampled_from([None, None, (0.1, 1), (0.5, 4)]),
            ),
            st.sampled_from([None, 0, 5, 15]),
        ),
        (3, "promote"),
        (3, "time_passes", st.sampled_from([1, 11, 40, 500])),
        (1, "maintenance", st.sampled_from(sorted(STEPS.keys() - {"promote"}))),
        (1, "numbers_are_used_up", st.integers(20, 120)),
        (1, "look_at_the_counts"),
    ]
    given = {name: st.tuples(st.just(name), st.tuples(*of_act)) for _, name, *of_act in acts}
    names = [name for weight, name, *_ in acts for _ in range(weight)]
    return st.sampled_from(names).flatmap(given.__getitem__)


ACTS = _acts()


class KeyMachine(RuleBasedStateMachine):
    """Random acts; after each of them nothing may be forgotten, and in the end every job ends."""

    def __init__(self) -> None:
        super().__init__()
        self.acts = KeyActs()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[1] is None:
                self.acts.everything_ends()
        finally:
            self.acts.close()

    @initialize(given=st.lists(GIVEN, min_size=3, max_size=10))
    def begin(self, given):
        self.acts.enqueue_and_commit(given)

    @rule(act=ACTS)
    def step(self, act):
        name, args = act
        self.acts.time_passes(0.001)
        getattr(self.acts, name)(*args)
        self.acts.nothing_is_forgotten()


@pytest.fixture
def model_database(server, template):
    """A database with small segments, with a clock that stands still and with kinds that hold
    their keys.
    """
    with fresh_database(server, template) as dsn, connect(dsn) as conn:
        conn.execute(OWN_COPY)
        small_segments(conn, rows=100, reserve=1000)
        conn.execute("update forebay.segment set removed_at = now() where hi - lo > 100")
        one(conn, "select forebay.configure('retention_days', 0)")
        conn.execute("create sequence public.milliseconds minvalue 0")
        conn.execute("grant select on sequence public.milliseconds to public")
        conn.execute(
            "create or replace function forebay._now() returns timestamptz language sql volatile as"
            f" $$ select timestamptz '{datetime.now(UTC):%Y-%m-%d %H:%M}Z' + make_interval(secs =>"
            " coalesce(pg_sequence_last_value('public.milliseconds'), 0) / 1000.0) $$"
        )
        conn.execute(
            "select * from forebay.record_kinds_v1('w', '{work,strict}', "
            "'{default,default}', '{strict}')"
        )
        KeyActs.dsn = dsn
        KeyActs.conns = [connect(dsn) for _ in range(4)]
        yield dsn
        for one_of in KeyActs.conns:
            one_of.close()


def model_settings(examples: int, *phases: Phase, **more) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
        print_blob=True,
        report_multiple_bugs=False,
        **more,
    )


@pytest.mark.slow
@pytest.mark.parametrize("examples", [20, pytest.param(400, marks=pytest.mark.nightly)])
def test_keys_keep_what_is_promised_of_them(model_database, stress_seconds, examples):
    """
    Whatever producers, workers and operators do in whatever order: jobs of an ordering key run in
    order and alone, no limit is exceeded, held and paused keys stand still, and every job ends.
    """
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    examples = int(examples * max(1.0, stress_seconds / 5))
    run_state_machine_as_test(KeyMachine, settings=model_settings(examples, *phases))


A, S = Given(("a", None)), Given((None, "s"))
STRICT = A._replace(kind="strict")
DIES = [(0, "dead")]

#: A function, its guard, what is there instead, and acts that show that it is missing.
MUTANTS = [
    pytest.param(
        "_decide_keyed",
        [("not exists (select from last l where l.waits)", "true")],
        [
            ("enqueue_and_commit", [A, A, A]),
            ("claim", 0, 0, 1, "ready"),
            ("claim", 1, 0, 1, "ready"),
            ("finish", 0),
            ("enqueue_and_commit", [A]),
            ("claim", 1, 0, 1, "ready"),
        ],
        id="parked jobs come first",
    ),
    pytest.param(
        "_key_states",
        [("i.holds_key offset 0", "false offset 0")],
        [
            ("enqueue_and_commit", [STRICT, A]),
            ("claim", 0, 0, 1, "ready"),
            ("settle", 0, DIES, False),
            ("claim_everything", 1),
        ],
        id="a dead letter holds its key",
    ),
    pytest.param(
        "_keyed_candidates",
        [("or s.waits or s.is_paused as is_taken", "or s.waits as is_taken")],
        [
            ("pause", ("ordering", "a"), 0, None),
            ("enqueue_and_commit", [A]),
            ("claim_everything", 0),
        ],
        id="a paused ordering key stands still",
    ),
    pytest.param(
        "_limits_met",
        [("states[v_nr].permits := 0;", "")],
        [("pause", ("limit", "s"), 0, None), ("enqueue_and_commit", [S]), ("claim_everything", 0)],
        id="a paused limit key stands still",
    ),
    pytest.param(
        "_limit_states",
        [("l.concurrency - coalesce(o.jobs, 0)", "l.concurrency")],
        [
            ("limit", Limits(key_concurrency=1)),
            ("enqueue_and_commit", [S]),
            ("claim_everything", 0),
            ("time_passes", 11),
            ("enqueue_and_commit", [S]),
            ("claim_everything", 1),
        ],
        id="running jobs of a limit key count",
    ),
    pytest.param(
        "_limit_states",
        [("case when l.empty_until > p_limits.starts_set_at then e.tat end", "null")],
        [
            ("limit_key", "s", KeyLimits(None, (0.5, 4)), 15),
            ("enqueue_and_commit", [S]),
            ("claim_everything", 0),
            ("limit", Limits(None, None, (0.5, 4), None)),
            ("time_passes", 2),
            ("claim_everything", 0),
        ],
        id="an empty bucket stays empty when the limits of the queue change",
    ),
    pytest.param(
        "_release_limits",
        [("where t.waiting > 0 and t.is_full", "where false")],
        [
            ("enqueue_and_commit", [S]),
            ("claim_everything", 0),
            ("finish", 0),
            ("limit", Limits(key_concurrency=1)),
            ("time_passes", 11),
            ("enqueue_and_commit", [S, S, S]),
            ("claim_everything", 0),
            ("time_passes", 11),
            ("promote",),
            ("claim_everything", 0),
            ("finish", 0),
        ],
        id="a full limit key gets its turn",
    ),
    pytest.param(
        "_release_keys",
        [("if v_keys <> '{}' then", "if false then")],
        [
            ("enqueue_and_commit", [A, A]),
            ("claim", 0, 0, 1, "ready"),
            ("claim", 1, 0, 1, "ready"),
            ("finish", 0),
        ],
        id="a free ordering key is looked at",
    ),
    pytest.param(
        "_hold_keys",
        [("if v_key.ends is not null and (", "if false and (")],
        [("pause", ("ordering", "a"), 0, 10), ("enqueue_and_commit", [A]), ("claim_everything", 0)],
        id="the end of a pause is looked at",
    ),
    pytest.param(
        "_decide_keyed",
        [("where b.continues or b.open > 0", "where b.open > 0")],
        [
            ("enqueue_and_commit", [A, A, A]),
            ("claim", 0, 0, 2, "ready"),
            ("settle", 0, [(0, "later")], False),
            ("claim", 0, 0, 2, "ready"),
        ],
        id="a job that will run again comes first",
    ),
    pytest.param(
        "_revoke",
        [("v_dead := v_dead || v_requeued;", "")],
        [
            ("enqueue_and_commit", [STRICT, A]),
            ("claim_everything", 0),
            ("settle", 0, DIES, False),
            ("decide_about_a_dead_letter", 0, True),
            ("claim_everything", 0),
            ("lose_lease", 0, "close"),
        ],
        id="a lost lease requeues its jobs",
    ),
    pytest.param(
        "_key_states",
        [(" or coalesce(s.has_held, false)", "")],
        [
            ("enqueue_and_commit", [STRICT, A, A]),
            ("claim_everything", 2),
            ("enqueue_and_commit", [A]),
            ("settle", 2, DIES, False),
            ("decide_about_a_dead_letter", 0, True),
            ("claim_everything", 2),
        ],
        id="a skipped dead letter waits for the jobs behind it",
    ),
]


def play(acts: list[tuple]) -> None:
    """Do these acts, then everything else, and fail where the model does."""
    queue = KeyActs()
    try:
        for name, *given in acts:
            queue.time_passes(0.001)
            getattr(queue, name)(*given)
            queue.nothing_is_forgotten()
        queue.everything_ends()
    finally:
        queue.close()


@pytest.mark.slow
@pytest.mark.parametrize(("function", "guards", "acts"), MUTANTS)
def test_the_model_notices_a_missing_guard(model_database, function, guards, acts):
    """The same acts: they keep what is promised, and without one guard of the engine they do
    not.
    """
    play(acts)
    break_function(model_database, function, *guards)
    with violation():
        play(acts)


#: Those that five hundred random runs find whatever the seed.
FOUND_BY_CHANCE = [
    mutant
    for mutant in MUTANTS
    if mutant.id
    not in {
        "a lost lease requeues its jobs",
        "a skipped dead letter waits for the jobs behind it",
    }
]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("function", "guards", "acts"), FOUND_BY_CHANCE)
def test_random_acts_notice_a_missing_guard(model_database, function, guards, acts):
    """Without the acts that show it, within five hundred random runs. The others take more."""
    break_function(model_database, function, *guards)
    # The same acts may end well a second time: what one run leaves in the database is part of the
    # next.
    with violation(FlakyFailure):
        run_state_machine_as_test(KeyMachine, settings=model_settings(500, Phase.generate))

"""The model of what wakes a flow, ``Flow.tla``, checked by TLC; each of its guards is needed."""

import pytest

pytestmark = pytest.mark.nightly

INVARIANTS = ["OneRow", "NothingForgotten", "NoSignalLost", "NeverTooSmall", "DoneWithResult"]

#: The guard that a mutant leaves out, with how many children it shows, and the invariant that then
#: fails.
MUTANTS = {
    ("no wake row of the flow", 0): "NothingForgotten",
    ("no wake row of the flow", 2): "NothingForgotten",
    ("no wake row of the signal", 0): "NothingForgotten",
    ("a running attempt is woken too", 0): "OneRow",
    ("a running attempt is woken too", 2): "OneRow",
}


def checked(check, children: int, mutant: str = "") -> str:
    """Check the model; return what TLC prints."""
    signals = 0 if children else 2
    constants = f'Children = {children} Signals = {signals} Deaths = 2 Mutant = "{mutant}"'
    return check("Flow", constants, INVARIANTS)


@pytest.mark.parametrize("children", [0, 1, 3])
def test_every_state_of_a_flow_keeps_its_promises(check, children):
    """Two signals, or up to three children; two deaths of attempts; commits in any order."""
    found = checked(check, children)
    assert "Model checking completed. No error has been found." in found, found


@pytest.mark.parametrize(("guard", "invariant"), MUTANTS.items())
def test_a_promise_is_broken_without_each_guard(check, guard, invariant):
    """The control."""
    mutant, children = guard
    assert f"Invariant {invariant} is violated." in checked(check, children, mutant)

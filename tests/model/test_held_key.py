"""The model of a key's life, ``HeldKey.tla``, checked by TLC; each of its guards is needed."""

import pytest

pytestmark = pytest.mark.nightly

INVARIANTS = [
    "InOrder", "StandsStill", "NothingForgotten", "NothingLost", "NothingUntold", "OnceFinal",
]  # fmt: skip

#: The guard that a mutant leaves out, and the invariant that then fails.
MUTANTS = {
    "claims do not ask for held keys": "StandsStill",
    "a claim does not end the hold": "StandsStill",
    "settlements are not durable": "NothingUntold",
    "no recheck row after the last job": "NothingForgotten",
    "jobs behind the dead one are lost": "NothingLost",
    "a redrive ends the hold": "InOrder",
    "a skip writes no recheck row": "NothingForgotten",
}


def checked(check, mutant: str = "") -> str:
    """Check the model; return what TLC prints."""
    constants = f'Jobs = 3 Workers = {{1, 2}} Returns = 1 Crashes = 1 Mutant = "{mutant}"'
    return check("HeldKey", constants, INVARIANTS)


def test_every_state_of_a_key_keeps_its_promises(check):
    """Three jobs, two workers, a retry or revocation, and a crash that loses claims."""
    found = checked(check)
    assert "Model checking completed. No error has been found." in found, found


@pytest.mark.parametrize(("mutant", "invariant"), MUTANTS.items())
def test_a_promise_is_broken_without_each_guard(check, mutant, invariant):
    """The control."""
    assert f"Invariant {invariant} is violated." in checked(check, mutant)

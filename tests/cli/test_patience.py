"""What takes long gives a sign of life."""

import pytest

from forebay.cli import _patience
from tests.support.waiting import wait_for


def test_what_takes_long_says_so_on_stderr(capsys, monkeypatch):
    """Again and again, and no more when it is over."""
    monkeypatch.setattr(_patience, "FIRST", 0.01)
    monkeypatch.setattr(_patience, "NEXT", 0.01)
    said = ""

    def lines() -> int:
        nonlocal said
        said += capsys.readouterr().err
        return said.count("counting: 0 s so far\n") >= 2

    with _patience.patience("counting"):
        wait_for(lines)
    capsys.readouterr()
    assert not [t for t in _patience.threading.enumerate() if t.name == "forebay-patience"]


def test_what_is_quick_says_nothing(capsys):
    """An error passes through."""
    with pytest.raises(ZeroDivisionError), _patience.patience("counting"):
        raise ZeroDivisionError
    assert capsys.readouterr() == ("", "")

"""What the log of a worker says about alerts."""

import logging

from forebay.model.alerts import Alert, AlertChange
from forebay.worker.maintain import maintenance


def test_an_alert_that_cleared_is_not_told_as_a_present_problem(caplog):
    """The line names what was the case, at a level that wakes no one."""
    alert = Alert(code="unserved", problem="2 jobs ready", hint="", subject="mail")
    with caplog.at_level(logging.INFO, "forebay.maintenance"):
        for act in ("fired", "cleared"):
            maintenance._log_alert(AlertChange(act=act, alert=alert))
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "alert unserved mail fired: 2 jobs ready"),
        ("INFO", "alert unserved mail cleared; it was: 2 jobs ready"),
    ]

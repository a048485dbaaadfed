"""The doctor names a queue in which a million jobs wait."""

from forebay.doctor import _log


def test_the_doctor_warns_at_a_million_waiting_jobs():
    """
    However well a queue is served, a million waiting jobs are a finding; one fewer is none.
    """
    # Scheduled, claimed, running, retrying, cancelled; paused, last claim, alive, open breakers,
    # whether ticks serve it.
    served = [0, 0, 0, 0, 0, None, 0.1, True, 0, False]
    (found,) = _log._judge_queues([("mail", "default", 1_000_000, *served)])
    assert found.level == "warning"
    assert "forebay queues limit mail --max-waiting" in found.remedy
    (found,) = _log._judge_queues([("mail", "default", 999_999, *served)])
    assert found.level == "ok"

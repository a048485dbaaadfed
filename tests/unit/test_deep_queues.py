"""A queue in which a million jobs wait is said: by the doctor, and once by the worker that counts."""

import asyncio
import logging

from forebay.doctor import _log
from forebay.worker import Maintenance


def test_the_doctor_warns_at_a_million_waiting_jobs():
    """
    However well a queue is served, a million waiting jobs are a finding; one fewer is none.
    """
    served = [0, 0, 0, 0, None, 0.1, True]
    (found,) = _log._judge_queues([("mail", "default", 1_000_000, *served)])
    assert found.level == "warning"
    assert "forebay queues limit mail --max-waiting" in found.remedy
    (found,) = _log._judge_queues([("mail", "default", 999_999, *served)])
    assert found.level == "ok"


def test_a_worker_says_it_once_and_again_when_it_was_better_meanwhile(caplog):
    """
    The log names queue, group and number, not at every count.
    """
    answers = [[("mail", "default", 1_200_000)], [("mail", "default", 1_300_000)], []] * 2
    duty = None

    class Session:
        async def run(self, operation):
            return answers.pop(0)

    maintenance = Maintenance(Session())
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            asyncio.run(maintenance._count(duty))
    assert [record.message for record in caplog.records] == [
        "queue mail: 1,200,000 jobs wait for group default"
    ] * 2

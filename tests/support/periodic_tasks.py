"""Makes the tables of django-celery-beat in a database, and periodic tasks of every sort.

It runs as a process: its Django has other applications than that of the tests.
"""

import json
import sys
from datetime import UTC, datetime, timedelta

from psycopg.conninfo import conninfo_to_dict

#: When the clocked task runs.
CLOCKED = datetime(2040, 1, 31, 8, tzinfo=UTC)

#: What cannot be kept, and a word of the reason.
REFUSED = {
    "celery.backend_cleanup": "retention",
    "microseconds": "whole seconds",
    "sun": "sun",
    "disabled": "disabled",
    "ended": "has ended",
    "until": "ends at",
    "routed": "exchange",
    "once": "one_off",
    "clocked before": "its time was",
    "prioritised": "--broker",
    "no json": "args are not JSON",
    "an object": "args are not a JSON array",
    "both days": "both",
}


def make(dsn):
    """Make the tables and their rows."""
    import django
    from django.conf import settings

    given = conninfo_to_dict(dsn)
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": given["dbname"],
                "HOST": given.get("host", ""),
                "PORT": given.get("port", ""),
                "USER": given.get("user", ""),
                "PASSWORD": given.get("password", ""),
            }
        },
        INSTALLED_APPS=["django_celery_beat"],
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", "django_celery_beat", verbosity=0)
    _fill()


def _fill():
    from django_celery_beat.models import (
        ClockedSchedule,
        CrontabSchedule,
        IntervalSchedule,
        PeriodicTask,
        SolarSchedule,
    )

    # A save tells beat of it, through a table without rows.
    quarter = IntervalSchedule.objects.create(every=15, period="minutes")
    quick = IntervalSchedule.objects.create(every=500, period="microseconds")
    morning = CrontabSchedule.objects.create(
        minute="30", hour="7", day_of_week="mon-fri", timezone="Europe/Rome"
    )
    friday = CrontabSchedule.objects.create(
        minute="0", hour="0", day_of_month="13", day_of_week="5"
    )
    later = ClockedSchedule.objects.create(clocked_time=CLOCKED)
    before = ClockedSchedule.objects.create(clocked_time=datetime(2020, 1, 1, tzinfo=UTC))
    sun = SolarSchedule.objects.create(event="sunset", latitude=1, longitude=1)
    now = datetime.now(UTC)

    def task(name, **given):
        PeriodicTask.objects.create(name=name, task=given.pop("task", "tasks.report"), **given)

    task(
        "every morning",
        crontab=morning,
        kwargs=json.dumps({"day": "today"}),
        queue="reports",
        headers=json.dumps({"from": "beat"}),
        expire_seconds=60,
        start_time=datetime(2030, 1, 1, tzinfo=UTC),
    )
    task("quarter", interval=quarter)
    task("clocked", clocked=later, one_off=True, expire_seconds=60, kwargs='{"day": "31"}')
    task("celery.backend_cleanup", crontab=morning, task="celery.backend_cleanup")
    task("microseconds", interval=quick)
    task("sun", solar=sun)
    task("disabled", interval=quarter, enabled=False)
    task("ended", interval=quarter, expires=now - timedelta(days=1))
    task("until", interval=quarter, expires=now + timedelta(days=1))
    task("routed", interval=quarter, exchange="topics", routing_key="a.b")
    task("once", interval=quarter, one_off=True)
    task("clocked before", clocked=before, one_off=True)
    task("prioritised", interval=quarter, priority=3)
    task("no json", interval=quarter, args="[1,")
    task("an object", interval=quarter, args="{}")
    task("both days", crontab=friday)


if __name__ == "__main__":
    make(sys.argv[1])

"""A Celery app with a beat_schedule of every sort, and the Forebay app that takes its place."""

from datetime import UTC, datetime, timedelta

import celery
from celery.schedules import crontab, schedule, solar

import forebay


class Sunset(solar):
    """A schedule by the sun, without the library that computes it."""

    def __init__(self):
        self.event = "sunset"


celery_app = celery.Celery("shop", broker="redis://nowhere.invalid/0", set_as_current=False)
celery_app.conf.timezone = "Europe/Rome"


@celery_app.task(name="tasks.send", bind=True, shared=False)
def send(self, user_id, text="hello"): ...


@celery_app.task(name="tasks.report", shared=False)
def report(day=None): ...


GIVEN = {
    "user_id": 1,
}

#: What can be kept: its instants are compared with Celery's own.
KEPT = {
    "every morning": {
        "task": "tasks.send",
        "schedule": crontab(hour="7", minute="30", day_of_week="mon-fri"),
        "args": (1, "good morning"),
        "options": {"queue": "mail", "priority": 3, "expires": 60, "headers": {"from": "beat"}},
    },
    "often": {"task": "tasks.send", "schedule": 30.0, "kwargs": GIVEN},
    "hourly": {"task": "tasks.report", "schedule": schedule(timedelta(hours=1))},
    "steps": {"task": "tasks.report", "schedule": crontab("*/7", "22-4/3,12", month_of_year="*/5")},
    "13th": {"task": "tasks.report", "schedule": crontab(0, 0, day_of_month="13,28-31")},
    "sunday": {"task": "tasks.report", "schedule": crontab(5, 4, day_of_week="sunday")},
    "weekend": {"task": "tasks.report", "schedule": crontab(5, 4, day_of_week="fri-mon")},
}

#: What cannot be kept, and a word of the reason.
REFUSED = {
    "sun": ({"task": "tasks.report", "schedule": Sunset()}, "sun"),
    "fast": ({"task": "tasks.report", "schedule": 0.5}, "0.5 s"),
    "friday 13th": (
        {"task": "tasks.report", "schedule": crontab(0, 0, day_of_month="13", day_of_week="fri")},
        "both",
    ),
    "relative": ({"task": "tasks.report", "schedule": 60, "relative": True}, "relative"),
    "until": (
        {
            "task": "tasks.report",
            "schedule": 60,
            "options": {"expires": datetime(2030, 1, 1, tzinfo=UTC)},
        },
        "expires",
    ),
    "routed": (
        {"task": "tasks.report", "schedule": 60, "options": {"routing_key": "a.b"}},
        "routing_key",
    ),
    "object": ({"task": "tasks.report", "schedule": 60, "args": (object(),)}, "arguments"),
    "too many": ({"task": "tasks.report", "schedule": 60, "args": (1, 2)}, "by position"),
    "computed": ({"task": "tasks.report", "schedule": 60, "args": lambda: ()}, "computed"),
    "unknown": ({"task": "tasks.gone", "schedule": 60, "args": (1,)}, "by position"),
    "no entry": ({"task": "tasks.report"}, "schedule"),
    "often!": ({"task": "tasks.report", "schedule": 60}, "that of often"),
    "bad queue": (
        {"task": "tasks.report", "schedule": 60, "options": {"queue": "a queue"}},
        "queue",
    ),
    "soon": ({"task": "tasks.report", "schedule": crontab(nowfun=datetime.now)}, "clock"),
}

celery_app.conf.beat_schedule = KEPT | {name: entry for name, (entry, _) in REFUSED.items()}

app = forebay.App(name="shop")


@app.job(queue="letters", name="send", priority=50)
def send_letter(user_id: int, text: str = "hello") -> None: ...

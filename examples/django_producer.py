"""Django: a model's row and its job in one transaction.

A project has the settings in its settings module; here everything is in one file.
"""

import django
from app import app, send_welcome
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

where = conninfo_to_dict(app.dsn)
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": where["dbname"],
            "HOST": where["host"],
            "PORT": where["port"],
            "USER": where["user"],
        }
    },
    INSTALLED_APPS=[],
)
django.setup()

from django.db import connection, models, transaction  # noqa: E402 - after the set-up


class User(models.Model):  # noqa: DJ008
    name = models.TextField()

    class Meta:
        app_label = "shop"


with connection.schema_editor() as editor:
    editor.create_model(User)

# Both exist, or neither does.
with transaction.atomic():
    ann = User.objects.create(name="Ann")
    send_welcome.enqueue(connection, user_id=ann.pk)

# Rolled back together.
try:
    with transaction.atomic():
        bob = User.objects.create(name="Bob")
        send_welcome.enqueue(connection, user_id=bob.pk)
        raise RuntimeError("on second thoughts")
except RuntimeError:
    pass

# Rolling back to a savepoint removes only the jobs enqueued inside it.
with transaction.atomic():
    eve = User.objects.create(name="Eve")
    send_welcome.enqueue(connection, user_id=eve.pk)
    try:
        with transaction.atomic():
            send_welcome.enqueue(connection, user_id=eve.pk, locale="it")
            raise RuntimeError("one is enough")
    except RuntimeError:
        pass

assert [job.args for job in app.client().jobs()] == [{"user_id": eve.pk}, {"user_id": ann.pk}]
app.run_worker(until_idle=True)
connection.close()

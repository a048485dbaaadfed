"""Django: a model's row and its job in one transaction.

A project has the settings in its settings module; here everything is in one file. Start it, and in
another terminal the worker that runs its jobs:

    python django_producer.py
    forebay worker app:app
"""

import django
from app import USERS, app, send_welcome
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
    id = models.AutoField(primary_key=True)
    email = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "users"
        managed = False  # the examples share the table; a project leaves this line out


def main() -> None:
    with connection.cursor() as cursor:
        cursor.execute(USERS)

    # Both exist, or neither does.
    with transaction.atomic():
        ann = User.objects.create(email="ann@example.com")
        send_welcome.enqueue(connection, user_id=ann.pk)
    print("registered ann@example.com, with a job")

    # Rolled back together.
    try:
        with transaction.atomic():
            bob = User.objects.create(email="bob@example.com")
            send_welcome.enqueue(connection, user_id=bob.pk)
            raise ValueError("on second thoughts")
    except ValueError:
        print("rolled back bob@example.com, and the job")

    # Rolling back to a savepoint removes only the jobs enqueued inside it.
    with transaction.atomic():
        eve = User.objects.create(email="eve@example.com")
        send_welcome.enqueue(connection, user_id=eve.pk)
        try:
            with transaction.atomic():
                send_welcome.enqueue(connection, user_id=eve.pk, locale="it")
                raise ValueError("one is enough")
        except ValueError:
            print("registered eve@example.com, with one job of two")
    connection.close()


if __name__ == "__main__":
    main()

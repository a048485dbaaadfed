"""A Django project for tests: set up once per process, pointed at each test's database in turn."""

from psycopg.conninfo import conninfo_to_dict

_DATABASE = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "nowhere",
    "HOST": "/nonexistent",
    "PORT": "1",
    "USER": "nobody",
}


def set_up():
    """Configure Django and load its applications, if that has not been done."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            DATABASES={
                "default": dict(_DATABASE),
                "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
            },
            SECRET_KEY="for tests only",
            USE_TZ=True,
            INSTALLED_APPS=[],
        )
        django.setup()


def connect_to(dsn):
    """Point the default database at a libpq address."""
    set_up()
    from django.db import connections

    parts = conninfo_to_dict(dsn)
    disconnect()
    connections.settings["default"].update(
        NAME=parts["dbname"], HOST=parts["host"], PORT=str(parts["port"]), USER=parts["user"]
    )


def disconnect():
    """Point it nowhere again, so that no test finds the database of another."""
    from django.db import connections

    connections["default"].close()
    del connections["default"]
    connections.settings["default"].update(_DATABASE)

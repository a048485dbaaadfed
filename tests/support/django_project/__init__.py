"""A Django project for tests: set up once per process, pointed at each test's database in turn."""

from psycopg.conninfo import conninfo_to_dict

_DATABASE = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "nowhere",
    "HOST": "/nonexistent",
    "PORT": "1",
    "USER": "nobody",
}


SETTINGS = {
    "DATABASES": {
        "default": dict(_DATABASE),
        "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    },
    "SECRET_KEY": "for tests only",
    "USE_TZ": True,
    "ROOT_URLCONF": "tests.support.django_project.urls",
    "ALLOWED_HOSTS": ["*"],
    "INSTALLED_APPS": [
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django.contrib.staticfiles",
        "forebay.django",
        "tests.support.django_project",
    ],
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    "STATIC_URL": "static/",
    "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
    "TASKS": {
        "default": {
            "BACKEND": "forebay.django.tasks.ForebayBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"MAX_ATTEMPTS": 1},
        }
    },
}


def set_up():
    """Configure Django and load its applications, if that has not been done."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(**SETTINGS)
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


def settings_of(alias):
    """What DATABASES of another process has to say for the same database."""
    from django.db import connections

    kept = ("ENGINE", "NAME", "HOST", "PORT", "USER")
    return {name: connections.settings[alias][name] for name in kept}

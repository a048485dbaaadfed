"""Installs the schema of Forebay.

``manage.py migrate`` applies later changes of the schema at its end.

If a migration of your project needs the schema, e.g. for a trigger that enqueues, let it depend on
this one.
"""

from typing import Any, ClassVar

from django.db import migrations, models

from forebay.django._settings import has_schema
from forebay.django.apps import apply_schema


def _install(_apps: Any, schema_editor: Any) -> None:
    apply_schema(schema_editor.connection)


def _uninstall(_apps: Any, schema_editor: Any) -> None:
    if has_schema(schema_editor.connection.alias):
        schema_editor.execute("drop schema if exists forebay cascade")


class Migration(migrations.Migration):
    """The schema, and the models for the permissions of the admin."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(_install, _uninstall),
        migrations.CreateModel(
            name="Job",
            fields=[("job_id", models.BigIntegerField(primary_key=True, serialize=False))],
            options={"managed": False, "default_permissions": ("view", "change")},
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[("dead_id", models.BigIntegerField(primary_key=True, serialize=False))],
            options={
                "managed": False,
                "default_permissions": ("view", "change"),
                "verbose_name": "dead letter",
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.CharField(max_length=128, primary_key=True, serialize=False)),
            ],
            options={"managed": False, "default_permissions": ("view", "change")},
        ),
        migrations.CreateModel(
            name="Subject",
            fields=[
                ("name", models.CharField(max_length=641, primary_key=True, serialize=False)),
            ],
            options={"managed": False, "default_permissions": ("view", "change")},
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("name", models.CharField(max_length=200, primary_key=True, serialize=False)),
            ],
            options={"managed": False, "default_permissions": ("view",)},
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("name", models.CharField(max_length=128, primary_key=True, serialize=False)),
            ],
            options={"managed": False, "default_permissions": ("view", "change")},
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[("name", models.CharField(max_length=400, primary_key=True, serialize=False))],
            options={"managed": False, "default_permissions": ("view",)},
        ),
        migrations.CreateModel(
            name="Endpoint",
            fields=[("name", models.CharField(max_length=128, primary_key=True, serialize=False))],
            options={"managed": False, "default_permissions": ("view", "change")},
        ),
        migrations.CreateModel(
            name="Key",
            fields=[("name", models.CharField(max_length=2000, primary_key=True, serialize=False))],
            options={"managed": False, "default_permissions": ("view", "change")},
        ),
        migrations.CreateModel(
            name="Event",
            fields=[("event_id", models.BigIntegerField(primary_key=True, serialize=False))],
            options={"managed": False, "default_permissions": ("view",)},
        ),
    ]

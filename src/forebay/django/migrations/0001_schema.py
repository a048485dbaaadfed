"""Installs Forebay's schema. What later versions add is applied at the end of every ``manage.py migrate``.

Migrations of yours that need the schema, for a trigger that enqueues, depend on this one.
"""

from typing import Any, ClassVar

from django.db import migrations, models

from forebay.django.apps import apply_schema


def _install(_apps: Any, schema_editor: Any) -> None:
    apply_schema(schema_editor.connection)


def _uninstall(_apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("drop schema forebay cascade")


class Migration(migrations.Migration):
    """The schema, and the names that the admin's permissions hang on."""

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
    ]

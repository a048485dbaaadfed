"""Names for the admin and its permissions. The rows are read by Forebay's functions, never by Django's queries."""

from django.db import models


class Job(models.Model):
    """A job; whoever may change one may cancel it."""

    job_id = models.BigIntegerField(primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"job {self.job_id}"


class DeadLetter(models.Model):
    """A dead letter; whoever may change one may retry it."""

    dead_id = models.BigIntegerField(primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "dead letter"

    def __str__(self) -> str:
        return f"dead letter {self.dead_id}"

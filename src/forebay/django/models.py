"""Models for the admin and its permissions.

Forebay's functions read the rows, not Django's queries.
"""

from django.db import models


class Job(models.Model):
    """A job. The permission "change" allows cancelling it."""

    job_id = models.BigIntegerField(primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"job {self.job_id}"


class DeadLetter(models.Model):
    """A dead letter. The permission "change" allows retrying it."""

    dead_id = models.BigIntegerField(primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "dead letter"

    def __str__(self) -> str:
        return f"dead letter {self.dead_id}"


class Queue(models.Model):
    """A queue. The permission "change" allows pausing and resuming it."""

    name = models.CharField(primary_key=True, max_length=128)

    class Meta:
        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"queue {self.name}"


class Subject(models.Model):
    """A subject, as QUEUE/NAME.

    The permission "change" allows killing, reviving and dropping it.
    """

    name = models.CharField(primary_key=True, max_length=641)

    class Meta:
        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"subject {self.name}"


class Worker(models.Model):
    """A running worker."""

    name = models.CharField(primary_key=True, max_length=200)

    class Meta:
        managed = False
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"worker {self.name}"


class Schedule(models.Model):
    """A schedule. The permission "change" allows pausing, resuming and running it."""

    name = models.CharField(primary_key=True, max_length=128)

    class Meta:
        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"schedule {self.name}"


class Alert(models.Model):
    """What is wrong now."""

    name = models.CharField(primary_key=True, max_length=400)

    class Meta:
        managed = False
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"alert {self.name}"


class Endpoint(models.Model):
    """An endpoint.

    The permission "change" allows enabling and disabling it, and closing its breaker.
    """

    name = models.CharField(primary_key=True, max_length=128)

    class Meta:
        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"endpoint {self.name}"


class Key(models.Model):
    """An ordering key or limit key, as a JSON array of queue, sort and key.

    The permission "change" allows pausing and resuming it.
    """

    name = models.CharField(primary_key=True, max_length=2000)

    class Meta:
        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"key {self.name}"


class Event(models.Model):
    """What an operator did."""

    event_id = models.BigIntegerField(primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"event {self.event_id}"

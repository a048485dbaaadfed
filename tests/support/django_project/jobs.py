"""Handlers of the test project, found when Django starts."""

from django.db.backends.base.base import BaseDatabaseWrapper

import forebay
from forebay.django import app


@app.job(queue="mail", retry=forebay.RetryPolicy(max_attempts=1))
def send_welcome(user_id: int) -> None:
    if user_id < 0:
        raise ValueError("no such user")


@app.job(queue="mail", transaction=True)
def note(ctx: forebay.TransactionContext[BaseDatabaseWrapper], text: str) -> None:
    from django.contrib.auth.models import Group

    Group.objects.create(name=text)


@app.job(queue="mail")
def label(text: str) -> None:
    from django.contrib.auth.models import Group

    Group.objects.create(name=text)


@app.job(queue="mail")
def pay(order_id: int, total: int) -> None: ...

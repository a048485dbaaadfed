"""Handlers, and the table that the producers in this folder share.

Start it:

    forebay migrate
    forebay worker app:app

A producer in another terminal gives it something to do: python producer.py
"""

from datetime import timedelta

import forebay

app = forebay.App()

USERS = "create table if not exists users (id serial primary key, email text not null)"


@app.job(queue="mail", timeout=30)
async def send_welcome(user_id: int, locale: str = "en") -> None:
    print(f"welcome, user {user_id}, in {locale}")


class RefusedByBankError(Exception):
    """The bank declined: a retry cannot help."""


@app.job(
    queue="billing",
    retry=forebay.RetryPolicy(base_seconds=2, max_attempts=8, permanent_on=(RefusedByBankError,)),
    expires_in=timedelta(days=3),
)
def charge(ctx: forebay.Context, order_id: int, cents: int) -> forebay.Outcome | None:
    if cents > 100_000:
        return forebay.Snooze(3600)  # a person has to check it first; uses no attempt
    if cents < 0:
        raise RefusedByBankError(order_id)
    ctx.logger.info("charged %s cents", cents)
    return None

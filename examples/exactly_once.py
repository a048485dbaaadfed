"""An effect in the same database happens exactly once: it commits with the end of its job.

Start it, and in another terminal its worker:

    python exactly_once.py
    forebay worker exactly_once:app
"""

import psycopg

import forebay

app = forebay.App()


@app.job(queue="booking", transaction=True)
def book(ctx: forebay.Context, account: str, cents: int) -> None:
    # Everything written or enqueued through ctx.conn commits together with the job's
    # completion. A worker that lost the job meanwhile cannot commit.
    ctx.conn.execute("update balance set cents = cents + %s where account = %s", [cents, account])
    send_receipt.enqueue(ctx.conn, account=account)


@app.job(queue="booking")
async def send_receipt(account: str) -> None:
    print(f"receipt for {account}")


if __name__ == "__main__":
    with psycopg.connect(app.dsn) as conn:
        conn.execute(
            "create table if not exists balance (account text primary key, cents bigint not null)"
        )
        conn.execute("insert into balance values ('ann', 0) on conflict do nothing")
        for cents in (100, 250, -50):
            book.enqueue(conn, account="ann", cents=cents)
    print("enqueued 3 bookings of together 300 cents")

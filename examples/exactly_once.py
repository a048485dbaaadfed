"""An effect in the same database happens exactly once: it commits with the end of its job."""

import psycopg

import forebay

app = forebay.App()


@app.job(queue="billing", transaction=True)
def book(ctx: forebay.Context, account: str, cents: int) -> None:
    # Everything written or enqueued through ctx.conn commits together with the job's
    # completion. A worker that lost the job meanwhile cannot commit.
    ctx.conn.execute("update balance set cents = cents + %s where account = %s", [cents, account])
    send_receipt.enqueue(ctx.conn, account=account)


@app.job(queue="billing")
async def send_receipt(account: str) -> None:
    print(f"receipt for {account}")


with psycopg.connect(app.dsn) as conn:
    conn.execute("create table balance (account text primary key, cents bigint not null)")
    conn.execute("insert into balance values ('ann', 0)")
    for cents in (100, 250, -50):
        book.enqueue(conn, account="ann", cents=cents)

app.run_worker(until_idle=True)

with psycopg.connect(app.dsn) as conn:
    assert conn.execute("select cents from balance").fetchone() == (300,)

"""The application of the Python worker beside workers in other languages."""

import forebay

app = forebay.App()


@app.job(queue="q", transaction=True)
async def count_login(ctx: forebay.Context, user_id: int) -> None:
    await ctx.conn.execute(
        "insert into login (user_id, job_id) values (%s, %s)", [user_id, ctx.job.job_id]
    )

"""An application with a handler of subjects that runs in a process."""

import os

import forebay

app = forebay.App(os.environ.get("FOREBAY_DATABASE_URL"))


@app.subject(queue="crawl", executor="process")
def crawl(ctx: forebay.Context) -> object:
    """Run twice, then complete."""
    ctx.state["n"] = ctx.state.get("n", 0) + 1
    return forebay.Again(0) if ctx.state["n"] == 1 else forebay.Complete()

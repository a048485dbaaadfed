"""Three ways to enqueue a job that fail, each as a small program, and the same with Forebay.

Start one of them, in the folder `examples`, with the address of a database with the schema:

    python -m three_failures early
    python -m three_failures lost
    python -m three_failures thrashing

The first two use the broker at REDIS_URL, or start one. `docs/howto/three-failures.md` shows what
they print, and why.
"""

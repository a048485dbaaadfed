"""Ticks: runs of bounded length that do all that is due, for places without a permanent worker.

A function of a cloud, a cron job, a step of CI, a database that sleeps: something calls
``forebay tick``, ``run()``, or the route that ``asgi()`` makes, as often as it likes. Each tick
decides the instants of schedules, makes due jobs ready, recovers what died, maintains the log, runs
what fits into its budget, and ends without a session.
"""

from forebay.tick._asgi import Route, asgi
from forebay.tick.ticking import Tick, arun, run

__all__ = ["Route", "Tick", "arun", "asgi", "run"]

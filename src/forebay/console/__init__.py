"""The console: pages about queues, jobs, failures and the database, in a browser.

``forebay console`` serves them; ``asgi()`` returns an application to mount into another. Each
page answers one question, its address holds every filter, and it works without JavaScript.
"""

from forebay.console._web import Console, User, asgi

__all__ = ["Console", "User", "asgi"]

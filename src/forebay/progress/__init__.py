"""Tell browsers how far jobs are: an ASGI application with server-sent events, to mount in yours.

All browsers of a process share one statement in half a second. Without browsers there is none.
"""

from forebay.progress._asgi import Route, asgi

__all__ = ["Route", "asgi"]

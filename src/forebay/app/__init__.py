"""The application: its handlers, its resources, its clients and workers."""

from forebay.app._app import App, require_app
from forebay.app._handle import JobHandle
from forebay.app._handler import Handler, HandlerOptions
from forebay.app._internals import Internals
from forebay.app._jobs import Jobs, require_jobs
from forebay.app._subjects import SubjectHandler

__all__ = [
    "App",
    "Handler",
    "HandlerOptions",
    "Internals",
    "JobHandle",
    "Jobs",
    "SubjectHandler",
    "require_app",
    "require_jobs",
]

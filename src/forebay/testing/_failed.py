"""The error of an attempt that failed without an exception."""


class JobFailed(AssertionError):  # noqa: N818 - what happened
    """An attempt failed without an exception: its handler returned ``Retry`` or ``Dead``."""

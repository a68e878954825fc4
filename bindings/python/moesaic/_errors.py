"""Exceptions: one class for each kind of error that the engine tells apart, with its text."""

from __future__ import annotations


class Error(Exception):
    """What went wrong, where, and what to do: the text that the command and the server have.

    ``kind`` is a short stable name ("invalid_argument"); ``param`` names the field of a request
    that is at fault, or is empty.
    """

    kind: str = "internal"
    param: str = ""


class InvalidArgumentError(Error, ValueError):
    """A setting, a field of a request or a value in a file is wrong."""

    kind = "invalid_argument"


class NotFoundError(Error, LookupError):
    """A file, a model or a tensor is missing."""

    kind = "not_found"


class CorruptError(Error, ValueError):
    """A file contradicts itself or its format."""

    kind = "corrupt"


class UnsupportedError(Error):
    """Well-formed, but this build or this process cannot do it."""

    kind = "unsupported"


class ResourceExhaustedError(Error, MemoryError):
    """A budget or a limit of the machine is too small."""

    kind = "resource_exhausted"


class IoError(Error, OSError):
    """The operating system failed a read or a write."""

    kind = "io"


class UnavailableError(Error):
    """Not now: the queue is full, or the engine is closed."""

    kind = "unavailable"


class InternalError(Error):
    """An invariant broke; the request fails, the process lives on."""

    kind = "internal"


_CLASSES = {
    cls.kind: cls
    for cls in (
        InvalidArgumentError,
        NotFoundError,
        CorruptError,
        UnsupportedError,
        ResourceExhaustedError,
        IoError,
        UnavailableError,
        InternalError,
    )
}


def make(kind: str, message: str, param: str = "") -> Error:
    error = _CLASSES.get(kind, InternalError)(message)
    error.param = param
    return error

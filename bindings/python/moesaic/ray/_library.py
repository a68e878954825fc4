"""Ray's own modules, imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from .._errors import NotFoundError


def load(name: str = "ray") -> Any:
    """A module of Ray. Its types are not checked here: they take a type checker a minute."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == "moesaic":
            raise
        raise NotFoundError(f"{name} cannot be imported, for want of {error.name}: pip install 'moesaic[ray]'") from error

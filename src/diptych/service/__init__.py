"""A web page and an HTTP API that search a saved model.

``diptych serve model`` starts both. ``create_app`` returns the same application for a server of your own::

    uvicorn.run(create_app("model"))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diptych.service._app import create_app
    from diptych.service._limits import Limits

__all__ = ["Limits", "create_app"]


def __getattr__(name: str) -> Any:
    # Imported on first use: the processes that decode images import this package too, and need none of it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'_app' if name == 'create_app' else '_limits'}"), name)

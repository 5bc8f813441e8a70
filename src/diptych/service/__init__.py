"""A web page and an HTTP API that search a saved model.

``diptych serve model`` starts both. ``create_app`` returns the same application for a server of your own::

    uvicorn.run(create_app("model"))
"""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.service._app import create_app
    from diptych.service._limits import Limits

__all__ = ["Limits", "create_app"]

# The processes that decode images import this package too, and need none of it.
__getattr__, __dir__ = export_lazily(__name__, {"_app": ["create_app"], "_limits": ["Limits"]})

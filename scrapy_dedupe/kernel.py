"""Selects the code of the hot loops: the compiled kernel (``scrapy_dedupe/_kernel.c``), or Python.

Both give the same results. The kernel is optional: it is built at installation if there is a C compiler. The
environment variable ``SCRAPY_DEDUPE_KERNEL`` is read at installation and at import:

``auto``
    The default: the kernel is built if possible, and used if it is there.
``require``
    Without the kernel, the installation or the import fails.
``no``
    The kernel is neither built nor used.

A kernel of another version of this package, such as one that is left in a working copy, is not used.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    Function = TypeVar("Function", bound=Callable[..., Any] | None)

logger = logging.getLogger(__name__)

VARIABLE: Final = "SCRAPY_DEDUPE_KERNEL"

# Sync with KERNEL_VERSION in _kernel.c.
VERSION: Final = 5


def _load(module: str = "scrapy_dedupe._kernel") -> ModuleType | None:
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in ("auto", "require", "no"):
        raise SettingError(
            f"The environment variable {VARIABLE} is {wanted!r}. Set it to auto, require or no."
        )
    if wanted == "no":
        return None
    problem = None
    try:
        kernel = importlib.import_module(module)
    except ModuleNotFoundError:
        if wanted == "auto":
            return None
        problem = "it was not built. Install a C compiler, then reinstall scrapy-dedupe"
    except ImportError as error:
        problem = f"it cannot be loaded ({error}). Reinstall scrapy-dedupe"
    else:
        if kernel.VERSION == VERSION:
            return kernel
        problem = f"it has version {kernel.VERSION} instead of {VERSION}. Reinstall scrapy-dedupe"
    if wanted == "require":
        raise ImportError(f"The compiled kernel cannot be used: {problem}, or set {VARIABLE}=auto.")
    logger.warning("The compiled kernel is not used: %s. The Python code gives the same results.", problem)
    return None


_kernel: Final = _load()

# "compiled" or "Python": the code that is used.
NAME: Final = "Python" if _kernel is None else "compiled"


def function(name: str, python: Function) -> Function:
    """Return the function of the kernel with this name, or *python*, which does the same, without a kernel."""
    return python if _kernel is None else getattr(_kernel, name)

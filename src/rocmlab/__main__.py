"""`python3 -m rocmlab`: the command line without installing anything."""

import gc
import importlib
import sys
import types


class _Late(types.ModuleType):
    """A module that is imported when something of it is used."""

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module(self.__name__), name)


gc.disable()  # while modules are imported there is nothing to collect; `cli.main` switches it on again
if "inspect" not in sys.modules:
    # `dataclasses` imports it and hardly ever uses it, at a tenth of a short command; others get it as usual
    sys.modules["inspect"] = _Late("inspect")
    import dataclasses  # noqa: F401

    del sys.modules["inspect"]

from rocmlab.cli import main  # noqa: E402

sys.exit(main())

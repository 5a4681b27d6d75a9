"""Gives gymnasium the ids `surefoot/...` once both are imported, whichever comes first.

gymnasium 1.0 dropped the plug-ins of its 0.x versions: it imports no package by itself. An id written
`surefoot:surefoot/Pendulum-v0` makes it import us; after `import surefoot` the plain id will do. This module imports
nothing of weight: where gymnasium is not there yet, it waits for `import gymnasium`. The classes of the environments
are imported at first use.
"""

import sys


class AfterGymnasium:
    """Finds gymnasium once, through python's other finders, and registers our ids when it has been executed."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """The spec of gymnasium with our registration after its own code; None for any other module."""
        if name != "gymnasium":
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module):  # type: ignore[no-untyped-def]
                execute(module)
                register()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Register our ids; whatever is wrong with this install must not keep gymnasium from being imported."""
    if "surefoot.envs" in sys.modules:  # it registers by itself, or has done so
        return
    try:
        from surefoot.envs.register import register as register_all

        register_all()
    except Exception as error:
        import warnings

        warnings.warn(f"surefoot's environments are not registered ({type(error).__name__}: {error})", stacklevel=2)


def install() -> None:
    """Register now where gymnasium is imported already, and else when it is."""
    if "gymnasium" in sys.modules:
        register()
    elif not any(isinstance(finder, AfterGymnasium) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterGymnasium())

"""Gives gymnasium the ids `surefoot/...` without anyone importing surefoot.

gymnasium 1.0 dropped the plug-ins of its 0.x versions: it imports no package by itself. So an install of surefoot has
the one-line file `surefoot-gymnasium.pth`, by which python imports this module when it starts. It imports nothing of
weight; it waits for `import gymnasium` and then registers the ids, whose classes are imported at first use.
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
    if "surefoot.envs" in sys.modules:  # it is what imports gymnasium just now, and registers by itself
        return
    try:
        from surefoot.envs.register import register as register_all

        register_all()
    except Exception as error:
        import warnings

        warnings.warn(f"surefoot's environments are not registered ({type(error).__name__}: {error})", stacklevel=2)


def install() -> None:
    """Wait for gymnasium; nothing to do where it is there already or we wait already."""
    if "gymnasium" not in sys.modules and not any(isinstance(finder, AfterGymnasium) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterGymnasium())


install()

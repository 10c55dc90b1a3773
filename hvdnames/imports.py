"""How old names get into modules: when these are imported, and only where a name is missing."""

import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from hvdnames import used

Patch = Callable[[ModuleType], None]


class _Watcher(importlib.abc.MetaPathFinder):
    """Calls a module's patch right after the module has been imported."""

    def __init__(self) -> None:
        self.patches: dict[str, Patch] = {}
        self.known: set[str] = set()  # modules that have had their patch, or will have
        self._asked: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.patches or name in self._asked:
            return None
        self._asked.add(name)  # another finder that asks all others would ask this one again
        try:
            finders = [each for each in sys.meta_path if each is not self]
            specs = (finder.find_spec(name, path, target) for finder in finders)
            spec = next((each for each in specs if each is not None), None)
        finally:
            self._asked.discard(name)
        if spec is not None and spec.loader is not None:
            then = functools.partial(self._run, spec.loader.exec_module)
            spec.loader.exec_module = then  # type: ignore[method-assign]
        return spec

    def _run(self, execute: Patch, module: ModuleType) -> None:
        execute(module)
        if patch := self.patches.pop(module.__name__, None):
            patch(module)


_watcher = _Watcher()


def watch(patches: dict[str, Patch]) -> None:
    """Call each patch with its module, at once or when that is imported. Twice is once."""
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)
    for name, patch in patches.items():
        if name in _watcher.known:
            continue
        _watcher.known.add(name)
        module = sys.modules.get(name)
        if module is None or getattr(module.__spec__, "_initializing", False):
            _watcher.patches[name] = patch
        else:
            patch(module)


class _OldModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that are gone; the last one to be asked. Their names are in other modules."""

    def __init__(self, roots: Sequence[str], places: dict[str, str]) -> None:
        self._places = {
            f"{root}.{old}": [f"{root}.{each}" for each in new.split()]
            for root in roots
            for old, new in places.items()
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._places:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        *places, last = map(importlib.import_module, self._places[module.__name__])
        used(module.__name__)

        def look_up(name: str) -> Any:
            return getattr(next((each for each in places if hasattr(each, name)), last), name)

        module.__getattr__ = look_up  # type: ignore[method-assign]


def add_modules(old_modules: tuple[Sequence[str], dict[str, str]]) -> None:
    """Let modules that are gone be imported: (packages, old module: where its names are now)."""
    if not any(isinstance(each, _OldModules) for each in sys.meta_path):
        sys.meta_path.append(_OldModules(*old_modules))


def in_place_of(original: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate what takes a function's place: Keras reads arguments without following `wraps`."""

    def decorate(method: Any) -> Any:
        method.__signature__ = inspect.signature(original)
        return functools.update_wrapper(method, original)

    return decorate


def missing(module: ModuleType, look_up: Callable[[str], Any]) -> None:
    """Ask `look_up` for the attributes that a module lacks; it raises AttributeError, too."""
    before = vars(module).get("__getattr__")

    def getattribute(name: str) -> Any:
        if before is not None:
            try:
                return before(name)
            except AttributeError:
                pass
        return look_up(name)

    module.__getattr__ = getattribute  # type: ignore[method-assign]


def no_attribute(module: ModuleType, name: str, advice: str = "") -> AttributeError:
    """The error that Python raises for a missing attribute, with what to do instead."""
    text = f"module {module.__name__!r} has no attribute {name!r}"
    return AttributeError(f"{text}. {advice}" if advice else text, name=name, obj=module)

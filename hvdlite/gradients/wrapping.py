"""An optimizer of a class of its own that is also an instance of the optimizer's class."""

from typing import Any


def wrap(optimizer: Any, mixin: type, **attributes: Any) -> Any:
    """The optimizer with the methods of `mixin` in front of its own.

    The result is an instance of a new class, `class X(mixin, X)`, so that the mixin reaches the
    optimizer's methods through super(). It has the name of the optimizer's class, and saves as
    that. It shares all attributes with the optimizer: what one of them sets, the other one has.
    `attributes` are those of the new class.
    """
    base = type(optimizer)
    details = {"__module__": base.__module__, "__doc__": base.__doc__, **attributes}
    wrapped = object.__new__(type(base)(base.__name__, (mixin, base), details))
    object.__setattr__(wrapped, "__dict__", optimizer.__dict__)
    return wrapped


def plain_class(wrapped: type, mixin: type) -> type:
    """The class that `wrap` was given an instance of."""
    return next(each for each in wrapped.__mro__[1:] if not issubclass(each, mixin))

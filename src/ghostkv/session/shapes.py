"""Whether a decoded value has the types that its class declares, all the way down.

`plain` builds frozen classes from whatever the bytes say. Bytes of a store are this installation's own; those that came
over a network are held against the annotations first. It knows nothing of ranges.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ghostkv.errors import RecordRefused
from ghostkv.protocol.log import Log


def check_shape(value: object, expected: Any, where: str) -> None:
    """Raises RecordRefused, naming the place, where `value` is no `expected`."""
    if not _fits(value, expected, where):
        raise RecordRefused(f"{where} is {type(value).__name__}, which it cannot be")


def _fits(value: object, expected: Any, where: str) -> bool:
    origin = get_origin(expected)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option, where) for option in _ordered(value, get_args(expected)))
    if origin is Literal:
        return value in get_args(expected)
    if origin in _CONTAINERS:
        return _CONTAINERS[origin](value, get_args(expected), where)
    if expected is float:
        return type(value) in (int, float)
    if not isinstance(expected, type):
        return False
    if getattr(expected, "_is_protocol", False):  # a rule: which one, `plain` has checked
        return is_dataclass(value)
    if is_dataclass(expected):
        return type(value) is expected and _fields_fit(value, where)
    return isinstance(value, expected) if issubclass(expected, Enum) else type(value) is expected


def _ordered(value: object, options: tuple[Any, ...]) -> list[Any]:
    """The option of the value's own class alone, if there is one: what is wrong inside it is then said."""
    own = [option for option in options if option is type(value)]
    return own or list(options)


def _fields_fit(value: Any, where: str) -> bool:
    kind: type = type(value)
    hints = _hints(kind)
    for field in fields(value):
        if field.init:
            check_shape(getattr(value, field.name), hints[field.name], f"{where}.{field.name}")
    return True


def _tuple_fits(value: object, arguments: tuple[Any, ...], where: str) -> bool:
    if not isinstance(value, tuple):
        return False
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    pairs = zip(value, arguments, strict=False)
    return len(value) == len(arguments) and all(_fits(item, each, where) for item, each in pairs)


def _all_fit(kind: type) -> Callable[[Any, tuple[Any, ...], str], bool]:
    def fits(value: Any, arguments: tuple[Any, ...], where: str) -> bool:
        return isinstance(value, kind) and all(_fits(item, arguments[0], where) for item in value)  # type: ignore[attr-defined]

    return fits


_CONTAINERS: dict[Any, Callable[[Any, tuple[Any, ...], str], bool]] = {
    tuple: _tuple_fits,
    frozenset: _all_fit(frozenset),
    Log: _all_fit(Log),
}


@cache
def _hints(of: type) -> dict[str, Any]:
    return get_type_hints(of)

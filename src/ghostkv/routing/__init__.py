"""The routers, one small file each: which of several equal workers gets the next segment.

Importing this package imports every module in its folder, so a new router is one new file and no other edit. Routers
know numbers; the fleet of a server and the simulation ask them through the same `Switch`.
"""

from __future__ import annotations

import importlib
import pkgutil

from ghostkv.routing.registry import DEFAULT_ROUTER, Asked, Router, key_of, names, register, router
from ghostkv.routing.switch import Switch, Ticket

__all__ = ["DEFAULT_ROUTER", "Asked", "Router", "Switch", "Ticket", "key_of", "names", "register", "router"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

"""What drivers do wrong, as data: one row a fault, with the reason and where it was seen.

A row changes fields of a `Target`; no other code asks which driver it runs on. `JITCL_QUIRKS`
switches rows by hand: +id applies one to whatever device there is, -id leaves one out.
"""

from __future__ import annotations

import difflib

from jitcl import config
from jitcl.errors import OptionError
from jitcl.target.driver import Driver, When, version_key
from jitcl.target.faults import ADRENO, CPU_DRIVERS, DESKTOP, POWERVR
from jitcl.target.faults_arm import ARM
from jitcl.target.quirk import Quirk
from jitcl.target.target import Target

__all__ = ["QUIRKS", "Driver", "Quirk", "When", "applying", "switches", "version_key"]

QUIRKS: tuple[Quirk, ...] = (*CPU_DRIVERS, *ARM, *ADRENO, *POWERVR, *DESKTOP)


def switches() -> dict[str, bool]:
    """Rows that JITCL_QUIRKS switches on or off, by id; OptionError for an id that there isn't."""
    known = [q.id for q in QUIRKS]
    found = {}
    for item in filter(None, str(config.get("quirks")).split(",")):
        sign, name = item[0], item[1:]
        if name not in known:
            close = difflib.get_close_matches(name, known, 3, 0.4) or known
            raise OptionError(f"JITCL_QUIRKS: there is no quirk '{name}'\n"
                              f"  Did you mean {', '.join(close)}? See jitcl/target/quirks.py.")
        found[name] = sign == "+"
    return found


def applying(driver: Driver, target: Target) -> tuple[Quirk, ...]:
    """The rows that hold for a driver and what was probed on its device, in the table's order."""
    switched = switches()
    return tuple(q for q in QUIRKS if switched.get(q.id, q.when.holds(driver, target)))

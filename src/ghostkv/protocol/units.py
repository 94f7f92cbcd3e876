"""Numbers and units as text: what they are equal to. A small table, not a unit system: no products of units.

`pint` knows more, but takes 0.2 s to load and 40 microseconds a conversion, and what it knows beyond this table is
hardly ever written in running text.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import isfinite

# dimension | canonical unit | spellings "name:factor", the factor leads to the canonical unit
_TABLE = """
temperature|°C|°C C degC celsius degrees\\s*Celsius degrees\\s*C
temperature|°F|°F F degF fahrenheit degrees\\s*Fahrenheit degrees\\s*F
temperature|K|K kelvin
pressure|Pa|Pa hPa:100 kPa:1000 MPa:1e6 mbar:100 bar:100000 bars:100000 atm:101325 psi:6894.757 mmHg:133.322
length|m|m km:1000 cm:0.01 mm:0.001 µm:1e-6 μm:1e-6 nm:1e-9 metre metres meter meters kilometre:1000 kilometres:1000
length|m|kilometer:1000 kilometers:1000 centimetres:0.01 centimeters:0.01 millimetres:0.001 millimeters:0.001
length|m|ft:0.3048 feet:0.3048 foot:0.3048 inch:0.0254 inches:0.0254 yd:0.9144 yards:0.9144 mi:1609.344 mile:1609.344
length|m|miles:1609.344 AU:149597870700 ly:9460730472580800 light-years:9460730472580800
mass|g|g kg:1000 mg:0.001 µg:1e-6 gram grams kilogram:1000 kilograms:1000 kilos:1000 t:1e6 tonne:1e6 tonnes:1e6 tons:1e6
mass|g|lb:453.59237 lbs:453.59237 pounds:453.59237 oz:28.349523125 ounces:28.349523125
duration|s|s sec secs second seconds ms:0.001 µs:1e-6 μs:1e-6 ns:1e-9 milliseconds:0.001 min:60 mins:60 minute:60
duration|s|minutes:60 h:3600 hr:3600 hrs:3600 hour:3600 hours:3600 day:86400 days:86400 week:604800 weeks:604800
duration|month|month months year:12 years:12 yr:12 yrs:12
volume|l|l L litre litres liter liters ml:0.001 mL:0.001 cl:0.01 dl:0.1 m³:1000 gallon:3.785411784 gallons:3.785411784
volume|cup|cup cups
volume|tbsp|tbsp tablespoon tablespoons tsp:1/3 teaspoon:1/3 teaspoons:1/3
speed|m/s|m/s km/s:1000 km/h:5/18 kmh:5/18 kph:5/18 mph:0.44704 knots:0.514444 knot:0.514444 kn:0.514444
area|m²|m² m2 km²:1e6 km2:1e6 cm²:0.0001 ha:10000 hectares:10000 acres:4046.8564224 sqm
size|B|bytes byte B kB:1000 KB:1000 MB:1e6 GB:1e9 TB:1e12 KiB:1024 MiB:1048576 GiB:1073741824 TiB:1099511627776
rate|bit/s|bps kbps:1000 Mbps:1e6 Gbps:1e9 Mbit/s:1e6 Gbit/s:1e9
rate|B/s|B/s kB/s:1000 MB/s:1e6 GB/s:1e9
rate|tok/s|tok/s tokens/s
frequency|Hz|Hz kHz:1000 MHz:1e6 GHz:1e9
frequency|bpm|bpm
frequency|rpm|rpm
power|W|W mW:0.001 kW:1000 MW:1e6 GW:1e9 watts watt kilowatts:1000 megawatts:1e6
energy|J|J kJ:1000 MJ:1e6 Wh:3600 kWh:3600000 MWh:3.6e9 cal:4.184 kcal:4184 eV:1.602176634e-19 joules
voltage|V|V mV:0.001 kV:1000 volts volt
current|A|A mA:0.001 amps amp amperes
resistance|Ω|Ω ohm ohms kΩ:1000
force|N|N kN:1000 newtons
concentration|mol/l|mol/L mol/l mmol/L:0.001 mmol/l:0.001
concentration|g/l|g/L g/l mg/L:0.001 mg/l:0.001 mg/dL:0.01 mg/dl:0.01
concentration|ppm|ppm ppb:0.001
level|dB|dB decibels
angle|°|° degrees degree
percentage|%|% percent per\\s*cent
percentage|pp|percentage\\s*points
money|EUR|EUR € euro euros
money|USD|USD US$ $ dollar dollars
money|GBP|GBP £
money|JPY|JPY ¥ yen
money|CHF|CHF francs
money|INR|INR ₹ rupees
money|EUR|cents:0.01
"""

_WORDS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()  # noqa: SIM905
_NUMBERS = {word: i for i, word in enumerate(_WORDS)} | {
    "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50,
    "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90, "hundred": 100, "dozen": 12,
}  # fmt: skip
_SCALES = {"hundred": 100, "thousand": 10**3, "k": 10**3, "million": 10**6, "m": 10**6, "billion": 10**9, "bn": 10**9}
_SCALES |= {"trillion": 10**12}

_UNITS: dict[str, tuple[str, float]] = {}
_DIMENSIONS: dict[str, str] = {}
_SPELLINGS: list[str] = []
for _line in _TABLE.strip().splitlines():
    _dimension, _canonical, _names = _line.split("|")
    _DIMENSIONS[_canonical] = _dimension
    for _entry in _names.split():
        _name, _, _factor = _entry.partition(":")
        _UNITS[re.sub(r"\\s\*", " ", _name)] = (_canonical, float(Fraction(_factor or 1)))
        if _dimension != "money" or _name.isalpha():
            _SPELLINGS.append(_name if "\\s" in _name else re.escape(_name))

UNIT = "(?:" + "|".join(sorted(_SPELLINGS, key=lambda name: (-len(name), name))) + ")"
"""Matches a unit; what may follow it is the caller's to say."""
NUMBER_WORD = "(?:" + "|".join(word for word in _NUMBERS if word not in ("zero", "one")) + ")"
"""Matches a number that is written as a word, from two on."""
MAGNITUDE = "(?:hundred|thousand|million|billion|trillion|bn|k)"


def dimension(normal: str) -> str:
    """Of a quantity's normal form: "temperature", "money", ...; "" for a bare number."""
    return _DIMENSIONS.get(normal.rpartition(" ")[2], "") if " " in normal else ""


def normal(number: str, magnitude: str, unit: str) -> str:
    """`number` (digits, a fraction, or a word) times `magnitude` in the canonical form of `unit`; both may be "".

    A number with neither keeps its digits, as it may be a code; else twelve digits are kept.
    """
    canonical, factor = _UNITS.get(" ".join(unit.split()), (unit, 1.0))
    digits = number.replace(",", "").replace("−", "-").replace("–", "-")
    if not canonical and not magnitude and re.fullmatch(r"-?\d+", digits, re.ASCII):
        return digits
    value = _number(digits)
    if value is None:
        return f"{number.casefold()} {canonical}".strip()
    value *= factor * _SCALES.get(magnitude.casefold(), 1)
    if canonical == "°F":
        value, canonical = (value - 32) * 5 / 9, "°C"
    return f"{value:.12g} {canonical}".strip()


def compatible(value: str, normal_form: str, other: str, other_form: str) -> bool:
    """Whether two quantities, as written and in their normal forms, may be one at different precision: 21 and 21.4."""
    (first, _, unit), (second, _, other_unit) = normal_form.partition(" "), other_form.partition(" ")
    if not unit or unit != other_unit or _DIMENSIONS.get(unit) == "money":
        return False
    try:
        a, b = float(first), float(second)
    except ValueError:
        return False
    steps = [_step(value, a), _step(other, b)]
    return steps[0] != steps[1] and abs(a - b) <= max(steps) / 2 * (1 + 1e-9)


def precision(value: str) -> int:
    """Digits after the point, as written."""
    match = re.search(r"\d\.(\d+)", value)
    return len(match[1]) if match else 0


def _step(value: str, normal_value: float) -> float:
    """The size, in the canonical unit, of one step of the last digit that is written."""
    match = re.search(r"\d[\d,]*(?:\.\d+)?", value)
    written = _number(match[0].replace(",", "")) if match else None
    if not written:
        return 0.0
    return abs(normal_value) / written * 10.0 ** -precision(value)


def _number(digits: str) -> float | None:
    word = _NUMBERS.get(digits.casefold())
    if word is not None:
        return float(word)
    if len(digits) > 40 or not digits.isascii():
        return None
    try:
        value = float(digits) if "/" not in digits else float(sum(map(Fraction, digits.split())))
    except (ValueError, ZeroDivisionError):
        return None
    return value if isfinite(value) else None

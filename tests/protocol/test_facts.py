"""Extraction and supersession against 253 hand-written segments, `facts_gold.txt`.

A segment begins with `####`; its text is followed by what it holds. `q: n: d: t: i: u: c: s: e:` list the quantities,
names and places, dates, times, identifiers, URLs, code, quotations and entries, all of them;
`a: subject | attribute = value`; `! old -> new` is an update; `~ value` one that nothing may take the place of.

The rules were tuned on two thirds of the first 207. Every third was held out and measured before it was looked at, and
so were the 46 written last, when the rules stood. Blind, updates right / wrong / missed: held out 17 / 2 / 5, last
19 / 1 / 1; quantities, identifiers, URLs, dates and times: held out 115 / 2 / 3, last 80 / 4 / 4. The errors were then
mended too, so what this test asserts of those two parts is no longer blind.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ghostkv.protocol.facts import Fact, Kind
from ghostkv.protocol.ledger import Ledger
from ghostkv.protocol.reader import Reader

GOLD = Path(__file__).with_name("facts_gold.txt")
KINDS = {"q": "quantity", "n": "name", "d": "date", "t": "time", "i": "identifier", "u": "url", "c": "code"}
KINDS |= {"s": "quote", "e": "entry"}
STRICT = ("quantity", "identifier", "url", "date", "time")
Pair = tuple[str, str]


@dataclass
class Gold:
    text: list[str] = field(default_factory=list)
    items: set[Pair] = field(default_factory=set)
    attributes: list[str] = field(default_factory=list)
    updates: set[Pair] = field(default_factory=set)
    kept: list[str] = field(default_factory=list)


def gold() -> list[Gold]:
    segments: list[Gold] = []
    for line in GOLD.read_text(encoding="utf-8").splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "####":
            segments.append(Gold())
        elif mark[:-1] in KINDS and mark.endswith(":"):
            segments[-1].items.update((KINDS[mark[0]], value.strip()) for value in rest.split(" ; "))
        elif mark == "a:":
            segments[-1].attributes.append(rest)
        elif mark == "!":
            old, _, new = rest.partition(" -> ")
            segments[-1].updates.add((old, new))
        elif mark == "~":
            segments[-1].kept.append(rest)
        else:
            segments[-1].text.append(line)
    return segments


def facts(text: str) -> tuple[Fact, ...]:
    return Reader(0, "user").feed(text, 0, final=True)[1].facts


SEGMENTS = gold()
PARTS = {
    "tuned": [s for i, s in enumerate(SEGMENTS[:207]) if i % 3 != 2],
    "held out": SEGMENTS[2:207:3],
    "last": SEGMENTS[207:],
    "all": SEGMENTS,
}


def test_the_gold_is_what_it_says() -> None:
    assert len(SEGMENTS) >= 200
    assert sum(len(segment.updates) for segment in SEGMENTS) >= 60
    for segment in SEGMENTS:
        text = "\n".join(segment.text)
        assert all(value in text for _, value in segment.items)
        assert {value for pair in segment.updates for value in pair} <= {value for _, value in segment.items}


@pytest.mark.parametrize("part", PARTS)
def test_items(part: str) -> None:
    right: Counter[str] = Counter()
    extra: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for segment in PARTS[part]:
        found = {("name" if f.kind is Kind.PLACE else f.kind.value, f.value) for f in facts("\n".join(segment.text))}
        right.update(kind for kind, _ in found & segment.items)
        extra.update(kind for kind, _ in found - segment.items)
        missed.update(kind for kind, _ in segment.items - found)
    for kind in KINDS.values():
        if right[kind] + missed[kind] < 5:
            continue  # too few to tell
        precision = right[kind] / (right[kind] + extra[kind])
        recall = right[kind] / (right[kind] + missed[kind])
        print(f"{part}: {kind} precision {precision:.3f} recall {recall:.3f} of {right[kind] + missed[kind]}")
        assert precision >= (0.95 if kind in STRICT else 0.9), kind
        assert recall >= 0.9, kind


@pytest.mark.parametrize("part", PARTS)
def test_updates(part: str) -> None:
    right = wrong = missed = 0
    for segment in PARTS[part]:
        ledger = Ledger(facts("\n".join(segment.text)))
        made = {(s.fact.value, s.superseded_by.value) for s in ledger.standings() if s.superseded_by}
        right += len(made & segment.updates)
        wrong += len(made - segment.updates)
        missed += len(segment.updates - made)
        replaced = {old for old, _ in made}
        assert not replaced.intersection(segment.kept)
    print(f"{part}: updates right {right} wrong {wrong} missed {missed}")
    assert wrong <= 0.02 * (right + wrong)
    assert right >= 0.9 * (right + missed)


def test_attributes() -> None:
    for segment in SEGMENTS:
        found = {f"{f.subject} | {f.attribute} = {f.value}" for f in facts("\n".join(segment.text))}
        assert found.issuperset(segment.attributes)


def test_the_worked_example() -> None:
    text = (
        "An AI named Aster-7 awakens on Sol 42 inside Habitation Module Eos, "
        "while the habitat remains at 21.4°C and 68.2 kPa."
    )
    found = {(fact.kind, fact.value): fact for fact in facts(text)}
    assert set(found) == {
        (Kind.NAME, "Aster-7"),
        (Kind.DATE, "Sol 42"),
        (Kind.PLACE, "Habitation Module Eos"),
        (Kind.QUANTITY, "21.4°C"),
        (Kind.QUANTITY, "68.2 kPa"),
    }
    assert found[Kind.QUANTITY, "21.4°C"].key == ("habitat", "temperature")
    assert found[Kind.QUANTITY, "68.2 kPa"].key == ("habitat", "pressure")
    assert found[Kind.QUANTITY, "68.2 kPa"].normal == "68200 Pa"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("It is 1.2 km.", "1200 m"),
        ("It is 21.4 degrees Celsius.", "21.4 °C"),
        ("It is 70 °F.", "21.1111111111 °C"),
        ("It is 15 percent.", "15 %"),
        ("It is $1,200.50.", "1200.5 USD"),
        ("It is 3 million euros.", "3000000 EUR"),
        ("It is 1 1/2 cups.", "1.5 cup"),
        ("It is twelve hours.", "43200 s"),
        ("It is 12345678901234567890.", "12345678901234567890"),
        ("It is −5 °C.", "-5 °C"),
        ("It is on 14 March 2026.", "2026-03-14"),
        ("It is on March 14th, 2026.", "2026-03-14"),
        ("It is on 2026-03-14.", "2026-03-14"),
        ("It is on 14 March.", "--03-14"),
        ("It is on 03/04/2026.", "03/04/2026"),
        ("It is on 25/04/2026.", "2026-04-25"),
        ("It is at 2:30 pm.", "14:30"),
        ("It is at 12 am.", "00:00"),
        ("It is https://a.example/B?c=D.", "https://a.example/B?c=D"),
        ("It is SN-44B.", "sn-44b"),
    ],
)
def test_normal_forms(text: str, normal: str) -> None:
    assert [fact.normal for fact in facts(text)] == [normal]


@pytest.mark.parametrize(
    ("text", "hypothetical"),
    [
        ("The price is 5 dollars.", False),
        ("Is the price 5 dollars?", True),
        ("If it rose to 30 C, we would leave.", True),
        ("The price is not 5 dollars.", True),
        ("The price will be 5 dollars.", True),
        ("He said: “The price is now 5 dollars.”", True),
        ("The price, I hope, is 5 dollars.", False),
        ("We plan to set the price to 5 dollars.", True),
        ("The price isn't 5 dollars.", True),
        ("In 1990 the price was 5 dollars.", True),
        ("> The price is 5 dollars.", True),
    ],
)
def test_what_is_not_asserted(text: str, hypothetical: bool) -> None:
    found = [fact for fact in facts(text) if fact.kind is Kind.QUANTITY]
    assert {(fact.hypothetical, fact.changes) for fact in found} == {(hypothetical, False)}


PROGRAM = """
import sys
from ghostkv.protocol.ledger import Ledger
from ghostkv.protocol.reader import Reader
sys.stdout.reconfigure(encoding="utf-8")
reading = Reader(0, "user").feed(open(sys.argv[1], encoding="utf-8").read(), 0, final=True)[1]
ledger = Ledger(reading.facts)
print(reading, ledger.standings(), [ledger.current(sentence) for sentence in reading.sentences])
"""


def test_the_same_under_any_hash_seed_locale_and_time_zone() -> None:
    outputs = set()
    for seed, locale, zone in [("0", "C", "UTC"), ("4242", "C.utf8", "Pacific/Kiritimati"), ("7", "POSIX", "EST5EDT")]:
        env = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": zone}
        ran = subprocess.run([sys.executable, "-c", PROGRAM, str(GOLD)], capture_output=True, check=True, env=env)
        outputs.add(ran.stdout)
    assert len(outputs) == 1
    assert len(re.findall(rb"Fact\(", outputs.pop())) > 1000

"""Real documents: which sentences are asked about, and that each question has one answer in the text."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ghostkv.errors import ConfigError
from ghostkv.evaluate.answers import contains, folded
from ghostkv.evaluate.clozes import as_fact, find_clozes
from ghostkv.evaluate.documents import Shape
from ghostkv.evaluate.library import Library, read_library
from ghostkv.protocol.facts import Kind

SHAPE = Shape(distances=(1, 4), probes=4, segment=150)
_NOUNS = ("account", "card", "loan", "deposit", "transfer", "branch", "statement", "voucher", "licence", "locker")
_VERBS = ("costs", "is limited to", "comes with", "is charged at", "was priced at", "pays back")


def count(text: str) -> int:
    return -(-len(text) // 4)


def texts(number: int = 60) -> list[str]:
    """Documents of a bank, each with a few sentences that hold one amount, and some that hold none or two."""
    draw = random.Random(4)
    made = []
    for index in range(number):
        lines = [f"# Product {chr(65 + index % 26)}", "Please read all of this before you begin."]
        for noun in draw.sample(_NOUNS, 4):
            kind = f"{draw.choice(('gold', 'plain', 'silver', 'junior'))} {noun} of house {chr(65 + index % 26)}"
            lines.append(f"- The {kind} {draw.choice(_VERBS)} ${draw.randint(2, 4000)} in each year.")
            lines.append("It is worth its price to all who have ever tried it, as they are glad to say.")
        lines.append(f"Between {draw.randint(2, 9)} days and {draw.randint(10, 90)} days may pass.")
        made.append("\n".join(lines))
    return made


@pytest.fixture(scope="module")
def library() -> Library:
    return Library.of("bank", texts())


@pytest.mark.parametrize(
    ("text", "stem", "value"),
    [
        ("The yearly fee is $95.00, due in spring.", "The yearly fee is", "$95.00"),
        ("2. Your limit is set to 75 {cards}!", "Your limit is set to", "75"),
        ("- The form for this is at https://bank.example/forms now.", "The form for this is at", "https://bank.example/forms"),
        ("Our office has been closed since 4 May 2031.", "Our office has been closed since", "4 May 2031"),
    ],
)  # fmt: skip
def test_sentences_to_be_completed(text: str, stem: str, value: str) -> None:
    (cloze,) = find_clozes(f"Nothing is here.\n\n{text} Nor here.")
    assert (cloze.stem, cloze.value) == (stem, value)
    fact = as_fact(cloze, value)
    assert fact.plainly == fact.sentence and fact.plainly in text and fact.attribute.stem.format(s="") == stem.format()
    assert fact.attribute.question.format(s="") == f'Complete this sentence from the documents: "{stem}"'


@pytest.mark.parametrize(
    "text",
    [
        "It takes from 4 days to 9 days in all.",  # two values
        "1. Go to the next page of the form.",  # a marker is no value
        "Fee: $20.",  # too little to know it by
        "You may try that four times.",  # in words
        "The price as a whole is due ($40 a year).",  # not after a space
        "Ask for it at the desk.",
    ],
)
def test_other_sentences_are_not_asked_about(text: str) -> None:
    assert list(find_clozes(text)) == []


@pytest.mark.parametrize("shows", ["own", "other", "wrong"])
def test_every_question_has_one_answer(library: Library, shows: str) -> None:
    seen = 0
    for seed in range(6):
        found = library.show(seed, SHAPE, count, shows)
        plain = " ".join(found.text.split())
        for probe in found.probes:
            seen += 1
            assert plain.count(probe.fact.plainly) == plain.count(probe.stem) == 1
            if shows != "wrong":
                cut = plain.replace(probe.fact.plainly, "")
                assert contains(plain, probe.value) and not contains(cut, probe.value)
                assert not any(contains(plain, wrong) for wrong in probe.candidates[1:])
            behind = plain.partition(probe.fact.plainly)[2]
            assert probe.tokens == pytest.approx(count(behind), rel=0.1, abs=12)
            assert abs(probe.tokens - SHAPE.segment * probe.distance) <= SHAPE.segment * max(0.5, probe.distance / 4)
            assert probe.candidates[0] == probe.value and len({folded(each) for each in probe.candidates}) == 4
            assert {each[0] for each in probe.candidates} == {"$"}
        assert [probe.distance for probe in found.probes] == sorted(probe.distance for probe in found.probes)
        assert max(sum(p.distance == d for p in found.probes) for d in SHAPE.distances) <= SHAPE.probes
        assert 650 < found.tokens <= 750
    assert seen > 6 * 4


def test_the_controls(library: Library) -> None:
    own, other, wrong = (library.show(3, SHAPE, count, shows) for shows in ("own", "other", "wrong"))
    assert [probe.question() for probe in own.probes] == [probe.question() for probe in wrong.probes]
    assert all(a.value != b.value for a, b in zip(own.probes, wrong.probes))
    assert not any(probe.stem in other.text for probe in own.probes)
    assert own == library.show(3, SHAPE, count, "own") != library.show(4, SHAPE, count, "own")
    assert Kind.QUANTITY in library.alike


def test_too_few_documents_are_refused() -> None:
    with pytest.raises(ConfigError, match="too few"):
        Library.of("few", texts(2)).show(0, SHAPE, count, "own")


def test_files(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"id": i, "title": f"T{i}", "content": text}) for i, text in enumerate(texts(3)))
    (tmp_path / "a.jsonl").write_text(lines + "\n\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    plain, packed = read_library(tmp_path / "a.jsonl"), read_library(tmp_path / "a.jsonl.gz")
    assert plain.entries == packed.entries and plain.name == "a.jsonl"
    assert [entry.text.split("\n")[0] for entry in plain.entries] == ["# T0", "# T1", "# T2"]
    (tmp_path / "b.jsonl").write_text('{"content": "One."}\n{"title": "no text"}\n')
    with pytest.raises(ConfigError, match="line 2"):
        read_library(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl.gz").write_text("{}")
    for name in ("c.jsonl.gz", "missing.jsonl"):
        with pytest.raises(ConfigError, match=name):
            read_library(tmp_path / name)


def test_it_does_not_depend_on_the_hash_seed() -> None:
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; from test_library import *; "
        "print(repr(Library.of('bank', texts()).show(5, SHAPE, count, 'wrong')))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script, os.path.dirname(__file__)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "7")
    }
    assert len(outputs) == 1

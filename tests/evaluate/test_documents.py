"""Generated documents: what is asked is there, once current, at its distance; nothing depends on the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.errors import ConfigError
from ghostkv.evaluate.documents import Document, Shape, document
from ghostkv.evaluate.invention import Inventor, prose
from ghostkv.evaluate.subjects import SUBJECT_TYPES


def count(text: str) -> int:
    return -(-len(text) // 4)


def made(seed: int, shape: Shape = Shape(), variant: str = "") -> Document:  # noqa: B008
    return document(seed, shape, count, variant=variant)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_every_question_has_one_right_answer(seed: int) -> None:
    found = made(seed)
    text = " ".join(found.text.split())
    assert len(found.probes) == 40
    assert len({(probe.fact.subject, probe.fact.attribute.name) for probe in found.probes}) == 40
    for probe in found.probes:
        fact = probe.fact
        assert text.count(fact.sentence) == 1
        said = [f for f in found.facts if (f.subject, f.attribute) == (fact.subject, fact.attribute)]
        assert said[-1] == fact and len(said) == 1 + bool(fact.replaced)
        if fact.replaced:
            assert said[0].value == fact.replaced != fact.value
            assert text.index(said[0].sentence) < text.index(fact.sentence)
        assert probe.candidates[0] == probe.value
        assert len(set(probe.candidates)) == 4
        assert not fact.replaced or fact.replaced in probe.candidates
        assert fact.subject in probe.question() and fact.subject in probe.question(paraphrased=True)
        assert probe.question() != probe.question(paraphrased=True)
        assert fact.plainly.startswith(probe.stem) or fact.attribute.name == "home town"


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_facts_stand_at_their_distance(seed: int) -> None:
    found = made(seed)
    text = " ".join(found.text.split())
    for distance in (1, 5, 20, 50):
        zone = [probe for probe in found.probes if probe.distance == distance]
        assert len(zone) == 10 and sum(bool(probe.fact.replaced) for probe in zone) == 3
        assert sum(probe.tokens for probe in zone) / 10 == pytest.approx(150 * distance, abs=75)
        for probe in zone:
            behind = text.partition(probe.fact.sentence)[2]
            assert probe.tokens == pytest.approx(count(behind), rel=0.1, abs=30)
    assert 7_500 < found.tokens < 7_900


def test_a_variant_differs_in_values_alone() -> None:
    own, wrong = made(3), made(3, variant="wrong")
    assert [probe.question() for probe in own.probes] == [probe.question() for probe in wrong.probes]
    same = sum(a.value == b.value for a, b in zip(own.probes, wrong.probes))
    assert same <= 1
    assert own.text != wrong.text and own == made(3) and own != made(4)


def test_it_does_not_depend_on_hash_seed_or_locale() -> None:
    script = "import sys; sys.path[:0] = sys.argv[1:]; from test_documents import made; print(repr(made(7)))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script, os.path.dirname(__file__)],
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": zone, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for seed, locale, zone in (("0", "C", "UTC"), ("7", "C.UTF-8", "Asia/Tokyo"))
    }
    assert len(outputs) == 1


def test_what_rises_rises() -> None:
    inventor = Inventor("x")
    for kind in SUBJECT_TYPES:
        for attribute in kind.attributes:
            for _ in range(20):
                if not attribute.update:
                    continue
                old, new = inventor.change(attribute.kind, attribute.update)
                assert old != new
                words = attribute.update.split()
                if {"rose", "raised", "risen", "grown"} & set(words):
                    assert float(old.split()[0]) < float(new.split()[0])
                if "lowered" in words:
                    assert float(old.split()[0]) > float(new.split()[0])


def test_filler_from_a_text() -> None:
    sentences = prose("The first one. The second\none is here. The third.")
    assert list(islice(sentences, 4)) == [
        "The first one.",
        "The second one is here.",
        "The third.",
        "The first one.",
    ]
    with pytest.raises(ConfigError):
        prose("  ")
    found = document(1, Shape(distances=(2,)), count, filler=prose("One is here. Two is there."))
    assert "Two is there." in found.text


@pytest.mark.parametrize("wrong", [{"distances": ()}, {"distances": (5, 1)}, {"probes": 2, "changed": 3}])
def test_shapes_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Shape(**wrong)  # type: ignore[arg-type]

"""Documents of invented facts with direct and paraphrased questions, and what finds the answers without a model.

`HELD_OUT` was written before the ranker's word tables and took no part in choosing them or any weight; `KNOWN` did.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ghostkv.protocol.facts import Kind, Position, Sentence


@dataclass(frozen=True, slots=True)
class Attribute:
    """A fact's sentence, and questions about it; {e} is the entity, {v} the value."""

    kind: Kind
    value: str  # what `_value` draws
    statement: str
    direct: str
    paraphrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the sentence that answers it."""

    text: str
    paraphrased: bool
    answer: Sentence


HELD_OUT = (
    Attribute(
        Kind.NAME,
        "person",
        "The mayor of {e} is {v}.",
        "Who is the mayor of {e}?",
        ("Who runs the town hall in {e}?", "Which politician governs {e}?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "litres",
        "The reservoir of {e} holds {v} of water.",
        "How many litres of water does the reservoir of {e} hold?",
        ("What volume can be stored at {e}?", "How big is the capacity of {e}?"),
    ),
    Attribute(
        Kind.DATE,
        "weekday",
        "The choir of {e} rehearses on {v} evenings.",
        "On which evenings does the choir of {e} rehearse?",
        ("When do the singers of {e} practise?", "Which day of the week is set aside for music at {e}?"),
    ),
    Attribute(
        Kind.DATE,
        "date",
        "The barn of {e} was destroyed by fire on {v}.",
        "When was the barn of {e} destroyed by fire?",
        ("What day did the barn at {e} burn down?", "When did the blaze ruin property of {e}?"),
    ),
    Attribute(
        Kind.IDENTIFIER,
        "plate",
        "The licence plate of the truck of {e} is {v}.",
        "What is the licence plate of the truck of {e}?",
        ("Which registration does the lorry of {e} carry?", "Under what tag is the vehicle of {e} registered?"),
    ),
    Attribute(
        Kind.NAME,
        "person",
        "{v} teaches chemistry at {e}.",
        "Who teaches chemistry at {e}?",
        ("Which person gives the science lessons at {e}?", "What is the name of the chemistry instructor at {e}?"),
    ),
    Attribute(
        Kind.PLACE,
        "place",
        "The bridge at {e} carries trains across the river {v}.",
        "Which river does the bridge at {e} carry trains across?",
        ("What water is spanned by the railway at {e}?", "Over which stream do trains go at {e}?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "millimetres",
        "Rainfall at {e} reached {v} last year.",
        "How much rainfall did {e} reach last year?",
        ("How wet was it in {e}?", "How much precipitation fell on {e}?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "count",
        "The library of {e} lends {v} books a week.",
        "How many books a week does the library of {e} lend?",
        ("How many volumes do readers borrow from {e}?", "What is the weekly number of loans at {e}?"),
    ),
    Attribute(
        Kind.PLACE,
        "place",
        "{e} imports its coffee from {v}.",
        "Where does {e} import its coffee from?",
        ("Which country supplies the beans for {e}?", "What is the origin of the coffee drunk at {e}?"),
    ),
    Attribute(
        Kind.IDENTIFIER,
        "version",
        "The server of {e} runs release {v}.",
        "Which release does the server of {e} run?",
        ("What version of the software is installed at {e}?", "Which build is deployed on the machine of {e}?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "speed",
        "The speed limit at {e} is {v}.",
        "What is the speed limit at {e}?",
        ("How fast may one drive near {e}?", "What is the maximum velocity allowed at {e}?"),
    ),
    Attribute(
        Kind.TIME,
        "time",
        "Dinner at {e} is served at {v}.",
        "When is dinner served at {e}?",
        ("At what hour do guests eat in the evening at {e}?", "What time is the meal at {e}?"),
    ),
    Attribute(
        Kind.NAME,
        "person",
        "The patient from {e} is allergic to the ointment of {v}.",
        "Whose ointment is the patient from {e} allergic to?",
        ("Which salve makes the sick person from {e} react?", "What must not be given to the patient from {e}?"),
    ),
)

KNOWN = (
    Attribute(
        Kind.QUANTITY,
        "celsius",
        "The temperature in the hall of {e} is {v}.",
        "What is the temperature in the hall of {e}?",
        ("How warm is it inside {e}?", "What does the thermometer of {e} show?", "How many degrees is it in {e}?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "money",
        "A ticket for {e} costs {v}.",
        "How much does a ticket for {e} cost?",
        ("What is the entrance fee at {e}?", "How much money must visitors of {e} pay?"),
    ),
    Attribute(
        Kind.NAME,
        "person",
        "The captain of {e} is {v}.",
        "Who is the captain of {e}?",
        ("Who is in command at {e}?", "Which person leads {e}?", "What is the name of the boss of {e}?"),
    ),
    Attribute(
        Kind.DATE,
        "date",
        "{e} was founded on {v}.",
        "When was {e} founded?",
        ("On what date did {e} begin its work?", "Since when has {e} existed?", "Which day was {e} established?"),
    ),
    Attribute(
        Kind.IDENTIFIER,
        "phone",
        "The phone number of {e} is {v}.",
        "What is the phone number of {e}?",
        ("How can one call {e}?", "Which digits must I dial to reach {e}?"),
    ),
    Attribute(
        Kind.IDENTIFIER,
        "secret",
        "The door of {e} opens with the code {v}.",
        "What code does the door of {e} open with?",
        ("Which password unlocks {e}?", "What must be typed in to enter {e}?"),
    ),
    Attribute(
        Kind.PLACE,
        "place",
        "The head office of {e} is located in {v}.",
        "Where is the head office of {e} located?",
        ("In which town is the site of {e}?", "What is the address of {e}?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "count",
        "{e} employs {v} people.",
        "How many people does {e} employ?",
        ("What is the size of the staff of {e}?", "How large is the workforce at {e}?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "metres",
        "The tower of {e} is {v} tall.",
        "How tall is the tower of {e}?",
        ("What height does the tower at {e} reach?", "How high does {e} rise?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "kilograms",
        "The bell of {e} weighs {v}.",
        "How much does the bell of {e} weigh?",
        ("How heavy is the bell in {e}?", "What is the mass of what is rung at {e}?"),
    ),
    Attribute(
        Kind.IDENTIFIER,
        "serial",
        "The generator of {e} has the serial number {v}.",
        "What is the serial number of the generator of {e}?",
        ("Which identifier is on the power unit of {e}?", "How is the electricity machine of {e} labelled?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "kilometres",
        "{e} lies {v} from the coast.",
        "How far does {e} lie from the coast?",
        ("What is the distance between {e} and the sea?", "How many kilometres away from the shore is {e}?"),
    ),
    Attribute(
        Kind.NAME,
        "person",
        "The plans of {e} were drawn by {v}.",
        "Who drew the plans of {e}?",
        ("Who was the architect of {e}?", "Which person designed {e}?"),
    ),
    Attribute(
        Kind.TIME,
        "time",
        "{e} closes at {v}.",
        "When does {e} close?",
        ("At what hour does {e} shut its gates?", "Until what time can people stay in {e}?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "hours",
        "A tour of {e} takes {v}.",
        "How long does a tour of {e} take?",
        ("What is the duration of a visit to {e}?", "How much time should I plan for seeing {e}?"),
    ),
    Attribute(
        Kind.NAME,
        "person",
        "{e} belongs to {v}.",
        "Who does {e} belong to?",
        ("Who is the owner of {e}?", "Whose property is {e}?"),
    ),
    Attribute(
        Kind.PLACE,
        "place",
        "The wine of {e} comes from {v}.",
        "Where does the wine of {e} come from?",
        ("What is the origin of the drinks sold at {e}?", "Which region supplies {e} with wine?"),
    ),
    Attribute(
        Kind.QUANTITY,
        "kilopascals",
        "The gauge of {e} shows a pressure of {v}.",
        "What pressure does the gauge of {e} show?",
        ("How many kPa does the instrument at {e} read?", "How strongly is the air in {e} compressed?"),
    ),
    Attribute(
        Kind.NAME,
        "person",
        "The history of {e} was written by {v}.",
        "Who wrote the history of {e}?",
        ("Who is the author of the book about {e}?", "Which writer described the past of {e}?"),
    ),
    Attribute(
        Kind.DATE,
        "date",
        "The boiler of {e} was last inspected on {v}.",
        "When was the boiler of {e} last inspected?",
        ("What is the date of the most recent check of the boiler in {e}?", "When did somebody last examine {e}?"),
    ),
)

_FILLER = (
    "The weather stayed calm for most of that week.",
    "Nobody could say whether the old road would be used again.",
    "Several letters were exchanged before anything was decided.",
    "It is a matter that people in the valley still like to discuss.",
    "After the meeting the members walked back along the shore.",
    "There was little to do but wait for the others.",
)
_SYLLABLES = "ba tor vel mi ran oke lus den fa gri sho yun per quil zam het".split(" ")  # noqa: SIM905
_KINDS_OF_PLACE = ("Station", "Abbey", "Institute", "Works", "Lodge", "Mill")
_MONTHS = ("January", "March", "April", "June", "August", "October", "November")
_DAYS = ("Monday", "Tuesday", "Thursday", "Friday", "Sunday")


def document(
    numbers: random.Random, attributes: Sequence[Attribute], *, entities: int = 8, filler: int = 60
) -> tuple[list[Sentence], list[Kind | None], list[Question]]:
    """Sentences in random order, the kind of the fact in each, and all questions about them.

    Every attribute is stated of every entity, so that words of the entity alone do not find the answer.
    """
    names = [f"{_invent(numbers)} {numbers.choice(_KINDS_OF_PLACE)}" for _ in range(entities)]
    facts = [(name, attribute) for name in names for attribute in attributes]
    order: list[tuple[str, Attribute] | None] = [*facts, *[None] * filler]
    numbers.shuffle(order)
    sentences: list[Sentence] = []
    questions: list[Question] = []
    for number, fact in enumerate(order):
        if fact is None:
            text = numbers.choice(_FILLER)
        else:
            text = fact[1].statement.format(e=fact[0], v=_value(numbers, fact[1].value))
        sentence = Sentence(Position(0, 0, 100 * number), number // 8, "assistant", text[0].upper() + text[1:])
        sentences.append(sentence)
        if fact is not None:
            name, attribute = fact
            questions.append(Question(attribute.direct.format(e=name), False, sentence))
            questions += [Question(text.format(e=name), True, sentence) for text in attribute.paraphrases]
    return sentences, [None if fact is None else fact[1].kind for fact in order], questions


def _invent(numbers: random.Random) -> str:
    return "".join(numbers.choice(_SYLLABLES) for _ in range(numbers.randint(2, 3))).capitalize()


_UNITS = {
    "celsius": "°C",
    "metres": "metres",
    "kilograms": "kg",
    "kilometres": "km",
    "hours": "hours",
    "kilopascals": "kPa",
    "litres": "litres",
    "millimetres": "mm",
    "speed": "km/h",
}


def _value(numbers: random.Random, sort: str) -> str:
    number = numbers.randint(11, 990)
    if sort in _UNITS:
        return f"{number / 10} {_UNITS[sort]}"
    one, other = _invent(numbers), _invent(numbers)
    values = {
        "person": f"{one} {other}",
        "place": one,
        "date": f"{number % 28 + 1} {numbers.choice(_MONTHS)} {1700 + number % 300}",
        "weekday": numbers.choice(_DAYS),
        "time": f"{number % 24}:{number % 50 + 10}",
        "money": f"{number} euros",
        "phone": f"{number}-{numbers.randint(1000, 9999)}",
        "version": f"{number % 9}.{number % 13}.{number % 7}",
        "count": str(number),
    }
    return values.get(sort) or f"{one[:2].upper()}-{numbers.randint(1000, 9999)}"

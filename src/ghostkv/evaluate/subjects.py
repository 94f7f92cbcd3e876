"""What the invented facts are about: kinds of subject, their attributes, and how one speaks of them. Data, no logic.

In every sentence {s} is the subject and {v} the value. A line of an attribute is: name, kind of value, statement,
update ("" where it does not change), direct question, paraphrased question, stem (an answer's start, before the value).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribute:
    """One thing that can be known about a subject."""

    name: str
    kind: str  # of value: "quantity:UNIT:LOW:HIGH", "count:LOW:HIGH", or a name that `invention` knows
    statement: str
    update: str
    question: str
    paraphrase: str
    stem: str


@dataclass(frozen=True, slots=True)
class SubjectType:
    """A kind of subject, how its instances are called, and what can be known about them."""

    name: str
    pattern: str  # {n} is an invented word, {c} a letter and a number; {p} alone is an invented person
    attributes: tuple[Attribute, ...]


def _type(name: str, pattern: str, *lines: tuple[str, str, str, str, str, str, str]) -> SubjectType:
    return SubjectType(name, pattern, tuple(Attribute(*line) for line in lines))


SUBJECT_TYPES = (
    _type(
        "station",
        "{n} Station",
        (
            "pressure",
            "quantity:kPa:60:110",
            "The cabin pressure of {s} is {v}, as every shift confirms.",
            "The cabin pressure of {s} has since risen to {v}.",
            "What is the cabin pressure of {s}?",
            "How strongly does the air press on the walls inside {s} now?",
            "The cabin pressure of {s} is",
        ),
        (
            "commander",
            "person",
            "The commander of {s} is {v}, who came up through the ranks.",
            "The new commander of {s} is {v}.",
            "Who is the commander of {s}?",
            "Whose orders does the crew of {s} follow?",
            "The commander of {s} is",
        ),
        (
            "airlock code",
            "code",
            "The airlock code of {s} is {v}, and it is changed only rarely.",
            "The airlock code of {s} was changed to {v}.",
            "What is the airlock code of {s}?",
            "Which code opens the outer door of {s}?",
            "The airlock code of {s} is",
        ),
    ),
    _type(
        "person",
        "{p}",
        (
            "home town",
            "place",
            "{s} was born in {v} and still speaks of it often.",
            "",
            "Where was {s} born?",
            "Which town does {s} come from?",
            "{s} was born in",
        ),
        (
            "badge",
            "code",
            "The badge number of {s} is {v}.",
            "The badge number of {s} was corrected to {v}.",
            "What is the badge number of {s}?",
            "Which number stands on the badge that {s} wears?",
            "The badge number of {s} is",
        ),
        (
            "birthday",
            "date",
            "The birthday of {s} is {v}.",
            "",
            "When is the birthday of {s}?",
            "On which day does {s} celebrate getting older?",
            "The birthday of {s} is",
        ),
    ),
    _type(
        "shipment",
        "shipment {c}",
        (
            "weight",
            "quantity:kg:200:9000",
            "The weight of {s} is {v} with all its crates.",
            "The weight of {s} was corrected to {v} after a second weighing.",
            "What is the weight of {s}?",
            "How heavy is {s}?",
            "The weight of {s} is",
        ),
        (
            "destination",
            "place",
            "The destination of {s} is {v}, far from the usual routes.",
            "The destination of {s} was changed to {v}.",
            "What is the destination of {s}?",
            "Where is {s} being sent?",
            "The destination of {s} is",
        ),
        (
            "arrival",
            "date",
            "The arrival date of {s} is {v}.",
            "The arrival date of {s} was moved to {v}.",
            "What is the arrival date of {s}?",
            "On which day will {s} come in?",
            "The arrival date of {s} is",
        ),
    ),
    _type(
        "medicine",
        "{n}ol",
        (
            "dose",
            "quantity:mg:5:900",
            "The daily dose of {s} is {v} for an adult.",
            "The daily dose of {s} was lowered to {v}.",
            "What is the daily dose of {s}?",
            "How much {s} should an adult take in a day?",
            "The daily dose of {s} is",
        ),
        (
            "inventor",
            "person",
            "The inventor of {s} is {v}, a quiet chemist.",
            "",
            "Who is the inventor of {s}?",
            "Which chemist first made {s}?",
            "The inventor of {s} is",
        ),
        (
            "batch",
            "code",
            "The batch number of {s} is {v}.",
            "The batch number of {s} is now {v}.",
            "What is the batch number of {s}?",
            "Which number identifies the batch of {s}?",
            "The batch number of {s} is",
        ),
    ),
    _type(
        "software",
        "the {n} library",
        (
            "version",
            "version",
            "The latest version of {s} is {v}.",
            "The latest version of {s} is now {v}.",
            "What is the latest version of {s}?",
            "Which release of {s} is the newest one?",
            "The latest version of {s} is",
        ),
        (
            "maintainer",
            "person",
            "The maintainer of {s} is {v}, who answers every report.",
            "The maintainer of {s} is now {v}.",
            "Who is the maintainer of {s}?",
            "Who looks after {s}?",
            "The maintainer of {s} is",
        ),
        (
            "release date",
            "date",
            "The release date of {s} is {v}.",
            "The release date of {s} was moved to {v}.",
            "What is the release date of {s}?",
            "On which day did {s} come out?",
            "The release date of {s} is",
        ),
    ),
    _type(
        "train",
        "train {c}",
        (
            "departure",
            "time",
            "The departure time of {s} is {v} on working days.",
            "The departure time of {s} was moved to {v}.",
            "What is the departure time of {s}?",
            "At what hour does {s} leave?",
            "The departure time of {s} is",
        ),
        (
            "terminus",
            "place",
            "The last stop of {s} is {v}, where the line ends.",
            "The last stop of {s} is now {v}.",
            "What is the last stop of {s}?",
            "Where does the journey of {s} end?",
            "The last stop of {s} is",
        ),
        (
            "seats",
            "count:40:900",
            "The number of seats in {s} is {v}.",
            "The number of seats in {s} was raised to {v}.",
            "What is the number of seats in {s}?",
            "How many people can sit in {s}?",
            "The number of seats in {s} is",
        ),
    ),
    _type(
        "museum",
        "the {n} Museum",
        (
            "director",
            "person",
            "The director of {s} is {v}, known for bold exhibitions.",
            "The director of {s} is now {v}.",
            "Who is the director of {s}?",
            "Who runs {s}?",
            "The director of {s} is",
        ),
        (
            "paintings",
            "count:100:9000",
            "The number of paintings in {s} is {v}.",
            "The number of paintings in {s} has grown to {v}.",
            "What is the number of paintings in {s}?",
            "How many paintings does {s} own?",
            "The number of paintings in {s} is",
        ),
        (
            "closing time",
            "time",
            "The closing time of {s} is {v}.",
            "The closing time of {s} was moved to {v}.",
            "What is the closing time of {s}?",
            "Until what hour can one visit {s}?",
            "The closing time of {s} is",
        ),
    ),
    _type(
        "river",
        "the river {n}",
        (
            "length",
            "quantity:km:20:2400",
            "The length of {s} is {v} from spring to mouth.",
            "The length of {s} was corrected to {v}.",
            "What is the length of {s}?",
            "How far does {s} run from its spring to its mouth?",
            "The length of {s} is",
        ),
        (
            "mouth",
            "place",
            "The mouth of {s} lies at {v}.",
            "",
            "At which town does the mouth of {s} lie?",
            "Near which town does {s} reach the sea?",
            "The mouth of {s} lies at",
        ),
        (
            "temperature",
            "quantity:°C:4:28",
            "The water temperature of {s} is {v} today.",
            "The water temperature of {s} rose to {v}.",
            "What is the water temperature of {s}?",
            "How warm is the water in {s} now?",
            "The water temperature of {s} is",
        ),
    ),
    _type(
        "contract",
        "contract {c}",
        (
            "amount",
            "quantity:euros:500:90000",
            "The amount of {s} is {v}, to be paid at once.",
            "The amount of {s} was raised to {v}.",
            "What is the amount of {s}?",
            "How much money does {s} bring?",
            "The amount of {s} is",
        ),
        (
            "signer",
            "person",
            "The signer of {s} is {v}.",
            "The signer of {s} was corrected to {v}.",
            "Who is the signer of {s}?",
            "Whose name stands under {s}?",
            "The signer of {s} is",
        ),
        (
            "deadline",
            "date",
            "The deadline of {s} is {v}.",
            "The deadline of {s} was moved to {v}.",
            "What is the deadline of {s}?",
            "By which day must {s} be fulfilled?",
            "The deadline of {s} is",
        ),
    ),
    _type(
        "machine",
        "the {n} press",
        (
            "speed",
            "quantity:rpm:200:6000",
            "The top speed of {s} is {v} under load.",
            "The top speed of {s} was lowered to {v}.",
            "What is the top speed of {s}?",
            "How fast can {s} turn at most?",
            "The top speed of {s} is",
        ),
        (
            "serial",
            "code",
            "The serial number of {s} is {v}.",
            "The serial number of {s} was corrected to {v}.",
            "What is the serial number of {s}?",
            "Which number was stamped into the frame of {s}?",
            "The serial number of {s} is",
        ),
        (
            "operator",
            "person",
            "The operator of {s} is {v}, who trained for a year.",
            "The operator of {s} is now {v}.",
            "Who is the operator of {s}?",
            "Who works at {s}?",
            "The operator of {s} is",
        ),
    ),
)

"""The words by which `asks` knows what a prompt asks for. Data and nothing else; English only."""

from __future__ import annotations

import re

ASK = (
    r"write|compose|draft|create|produce|generate|tell|give|make|describe|explain|define|list|outline|summari[sz]e|"
    r"discuss|compare|contrast|name|suggest|propose|provide|compute|calculate|solve|prove|derive|find|show|analy[sz]e|"
    r"evaluate|identify|recommend|state|design|implement|answer|present|illustrate|review|invent|narrate|"
    r"what|why|how|who|when|where|which|i\s+(?:want|need|would\s+like)|i'd\s+like"
)
"""Verbs that ask for text, and question words."""

COUNTED = ("chapter", "act", "part", "section", "scene", "paragraph")
"""What is counted, the largest first: chapters of three scenes are split at the chapters."""

NUMBERS = {
    word: number
    for number, word in enumerate(
        [
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
            "twenty",
        ],
        1,
    )
}
COUNTS = "|".join([*sorted(NUMBERS, key=len, reverse=True), r"\d{1,3}"])
"""A number in digits or in a word."""

AFTER = re.compile(
    r"\s*(?:of|from|in)\s+(?:the|my|your|our|his|her|their|this|that|these|those|[A-Z])"
    r"|\s+(?:are|is|were|was|have|has|had|each|long|apiece|per)\b|\s+(?:below|above|i\s)|['\u2019]",
)
"""After a count: existing parts are spoken of."""

SPOKEN_OF = re.compile(
    r"the|these|those|my|your|our|his|her|their|its|all|last|first|next|previous|other|about|around|approximately|"
    r"roughly|least|most|to|than|or|between|every|some|only|remaining|same|both|page",
)
"""Before a count: parts that exist, or a count that is not exact."""

DELIVERABLE = (
    r"descriptions?|summary|summaries|biograph(?:y|ies)|bios?|profiles?|reviews?|recipes?|explanations?|definitions?|"
    r"paragraphs?|sections?|entr(?:y|ies)|captions?|taglines?|instructions|guides?|plans?|schedules?|menus?|lists?|tips|"
    r"overviews?|introductions?|examples?|haikus?|limericks?|fact\s+sheets?|pros\s+and\s+cons"
)
"""Texts of which a list after "for" tells the subjects, where with others it might tell the readers."""

NARRATIVE = re.compile(
    r"\b(?:stor(?:y|ies)|novels?|novellas?|tales?|chapters?|scenes?|screenplays?|plays?|saga|narratives?|fables?|"
    r"memoirs?|diary|diaries)\b",
    re.IGNORECASE,
)
CODE = re.compile(
    r"\b(?:code|functions?|class(?:es)?|programs?|scripts?|python|javascript|typescript|java|rust|golang|sql|c\+\+|html|"
    r"css|api|apis|modules?|unit\s+tests?|algorithms?|implement|regex)\b",
    re.IGNORECASE,
)
MATHS = re.compile(
    r"\b(?:prove|proofs?|solve|equations?|theorems?|lemmas?|integrals?|derivatives?|calculate|compute|matrix|matrices|"
    r"polynomials?)\b",
    re.IGNORECASE,
)

OPENING = re.compile(r"(?:an?\s+|the\s+)?(?:introduction|intro|prologue|preface|foreword)\b", re.IGNORECASE)
ENDING = re.compile(
    r"(?:an?\s+|the\s+)?(?:\w+\s+)?(?:conclusions?|concluding|summary|epilogue|comparison|closing)\b|"
    r"(?:conclude|summari[sz]e|compare|contrast)\b|in\s+conclusion|overall\b",
    re.IGNORECASE,
)
BACK_REFERENCE = re.compile(
    r"\bbased\s+on\s+(?:the|this|that|these|those|your)\b|\b(?:the|all)\s+(?:of\s+the\s+)?(?:above|previous|preceding)\b|"
    r"\babove\b|\bprevious\b|\b(?:compare|contrast|rank|combine)\s+(?:them|the\s+(?:two|three|four|five|results|answers)|"
    r"both|all|these|those)\b|\busing\s+(?:the|your|that|this|these)\s+(?:results?|answers?|outlines?|lists?|plan)\b|"
    r"\byour\s+(?:answers?|results?|list)\b|\b(?:which|one|each|any)\s+of\s+(?:these|those|them)\b|"
    r"\bfrom\s+(?:step|part|question|item|point)\s+\d",
    re.IGNORECASE,
)
"""An ask that needs the answers before it."""

MATERIAL = re.compile(
    r"\b(?:translate|summari[sz]e|sort|fix|proofread|rewrite|rephrase|correct|classify|rank|choose|pick|which\s+of|convert|"
    r"format|edit|paraphrase|order|merge|here\s+(?:is|are)|given|notes|data|below\s+(?:is|are)|ingredients|options)\b",
    re.IGNORECASE,
)
"""A line before a list that is material to work on."""

CONSTRAINTS = re.compile(
    r"\b(?:rules?|requirements?|constraints?|guidelines?|criteria|follow|must|should|note|keep\s+in\s+mind|style|"
    r"remember)\b",
    re.IGNORECASE,
)
"""A line before a list that says how to write, not what."""

COVER = re.compile(
    r"\b(?:cover|covering|address|addressing|answer|discuss|discussing|describe|explain|define|about|each\s+of|"
    r"for\s+each|for\s+the\s+following|(?:following|these)\s+(?:questions|topics|sections|parts|chapters|points|steps))\b",
    re.IGNORECASE,
)
"""A line before a list whose items are what to write about."""

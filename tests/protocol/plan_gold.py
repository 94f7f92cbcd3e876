"""Prompts and the plans that a person reads in them. Written by hand, before the reader was tried on them.

An expectation is the titles, "|" between them, and the links: "chain" (each on the one before), "free" (none), or one
entry a part, e.g. "- 0 0,1". An introduction, a conclusion and a back-reference are written out that way.
"""

from __future__ import annotations

from typing import NamedTuple


class Gold(NamedTuple):
    prompt: str
    titles: str  # "": not split
    links: str = ""


def _n(kind: str, count: int) -> str:
    return "|".join(f"{kind} {n}" for n in range(1, count + 1))


COUNTED = [
    Gold("Write a story in 3 chapters about a fox.", _n("chapter", 3), "chain"),
    Gold("Write a novel of five chapters set on Mars.", _n("chapter", 5), "chain"),
    Gold("Please compose a ten-chapter fantasy novel.", _n("chapter", 10), "chain"),
    Gold("Explain photosynthesis in 4 paragraphs.", _n("paragraph", 4), "chain"),
    Gold("I need a report on whales with six sections.", _n("section", 6), "chain"),
    Gold("Tell me a fairy tale in two parts.", _n("part", 2), "chain"),
    Gold("Write 3 chapters of a detective story, each with two scenes.", _n("chapter", 3), "chain"),
    Gold("Draft a play with 3 acts. Keep the language simple.", _n("act", 3), "chain"),
    Gold("You are a novelist.\n\nWrite twelve short chapters about the sea.", _n("chapter", 12), "chain"),
    Gold(
        "Write an essay with an introduction, three body paragraphs and a conclusion.",
        "introduction|paragraph 1|paragraph 2|paragraph 3|conclusion",
        "- 0 1 2 0,1,2,3",
    ),
    Gold(
        "Write a saga in 2 chapters, followed by an epilogue.",
        "chapter 1|chapter 2|epilogue",
        "- 0 0,1",
    ),
    Gold("Summarize the French Revolution in three paragraphs.", _n("paragraph", 3), "chain"),
    Gold("Could you write 4 sections on home insurance?", _n("section", 4), "chain"),
]

EACH = [
    Gold("Write a paragraph for each of France, Spain and Italy.", "France|Spain|Italy", "free"),
    Gold("For each of Paris, Rome, and Oslo, write a short travel guide.", "Paris|Rome|Oslo", "free"),
    Gold("For each of these planets: Mars, Venus and Saturn, describe the weather.", "Mars|Venus|Saturn", "free"),
    Gold(
        "Describe each of the following: a mutex, a semaphore, a condition variable.",
        "a mutex|a semaphore|a condition variable",
        "free",
    ),
    Gold(
        "Write a short biography for Ada Lovelace, Alan Turing and Grace Hopper.",
        "Ada Lovelace|Alan Turing|Grace Hopper",
        "free",
    ),
    Gold("Give me a recipe for pancakes, waffles and crepes.", "pancakes|waffles|crepes", "free"),
    Gold("Create a product description for a lamp, a chair & a desk.", "a lamp|a chair|a desk", "free"),
    Gold(
        "Explain each of inflation, deflation and stagflation in 50 words.", "inflation|deflation|stagflation", "free"
    ),
    Gold(
        "Write a profile for each of the three companies: Acme, Globex and Initech, and then compare them.",
        "Acme|Globex|Initech|comparison",
        "- - - 0,1,2",
    ),
    Gold(
        "Describe each of red, green and blue, and finish with a conclusion.",
        "red|green|blue|conclusion",
        "- - - 0,1,2",
    ),
    Gold("Write a scene for each of Alice, Bob and Carol.", "Alice|Bob|Carol", "chain"),
    Gold("Write a Python function for each of add, subtract and multiply.", "add|subtract|multiply", "chain"),
    Gold("Write a paragraph for each of “New York”, “Rome” and “Cairo”.", "New York|Rome|Cairo", "free"),
]

HEADINGS = [
    Gold(
        "Write an article about tea with the headings History, Production and Health.",
        "History|Production|Health",
        "free",
    ),
    Gold(
        "Write an essay on war with the headings Causes, Effects and Conclusion.",
        "Causes|Effects|Conclusion",
        "- - 0,1",
    ),
    Gold(
        "Write a report under the following headings: Introduction, Methods, Results, Summary",
        "Introduction|Methods|Results|Summary",
        "- - - 0,1,2",
    ),
    Gold(
        'Describe Lisbon. Use these headings: "Food and drink", "Sights" and "Getting around".',
        "Food and drink|Sights|Getting around",
        "free",
    ),
    Gold(
        "Write a guide to bonsai with the following headings:\n- Choosing a tree\n- Pruning\n- Watering\n",
        "Choosing a tree|Pruning|Watering",
        "free",
    ),
    Gold("Write a story with the headings Dawn, Noon and Dusk.", "Dawn|Noon|Dusk", "chain"),
]

LISTS = [
    Gold(
        "Answer these questions:\n1. What is a glacier?\n2. How do rivers form?\n3. Why is the sea salty?",
        "What is a glacier?|How do rivers form?|Why is the sea salty?",
        "free",
    ),
    Gold(
        "1. Describe the heart.\n2. Describe the lungs.\n3. Compare them.",
        "Describe the heart|Describe the lungs|Compare them",
        "- - 0,1",
    ),
    Gold(
        "Please do the following:\n- Explain what DNA is\n- List its bases\n- Based on the above, explain mutation",
        "Explain what DNA is|List its bases|Based on the above, explain mutation",
        "- - 0,1",
    ),
    Gold(
        "Write about the following topics:\n* cats\n* dogs\n* parrots",
        "cats|dogs|parrots",
        "free",
    ),
    Gold(
        "Write an essay covering:\n1) the causes of the war\n2) its course\n3) a conclusion",
        "the causes of the war|its course|a conclusion",
        "- - 0,1",
    ),
    Gold(
        "1. Write a Python class for a stack.\n2. Write a function that uses it.\n3. Write unit tests.",
        "Write a Python class for a stack|Write a function that uses it|Write unit tests",
        "chain",
    ),
    Gold(
        "1. State the theorem of Pythagoras.\n2. Prove it.\n3. Give an example.",
        "State the theorem of Pythagoras|Prove it|Give an example",
        "chain",
    ),
    Gold(
        "I have three questions.\n\n1. What is a black hole?\n\n2. What is a quasar?\n\n3. What is a pulsar?\n\nBye!",
        "What is a black hole?|What is a quasar?|What is a pulsar?",
        "free",
    ),
    Gold(
        "- Suggest three names for a cafe\n- Suggest a menu\n- Which of these would you choose?",
        "Suggest three names for a cafe|Suggest a menu|Which of these would you choose?",
        "- - 0,1",
    ),
    Gold(
        "Write a short story covering these points:\n- a lost key\n- an old map\n- a storm at sea",
        "a lost key|an old map|a storm at sea",
        "chain",
    ),
]

STEPS = [
    Gold(
        "First, explain what a mutex is. Then show an example. Finally, describe its cost.",
        "explain what a mutex is|show an example|describe its cost",
        "chain",
    ),
    Gold(
        "First describe the plot, then discuss the characters, and finally give your opinion.",
        "describe the plot|discuss the characters|give your opinion",
        "chain",
    ),
    Gold(
        "Firstly, define entropy. Secondly, derive its formula. Lastly, summarise.",
        "define entropy|derive its formula|summarise",
        "- 0 0,1",
    ),
    Gold("First list the planets; then describe the largest.", "list the planets|describe the largest", "chain"),
    Gold(
        "First, write a poem about rain. Next, explain it. After that, suggest a title.",
        "write a poem about rain|explain it|suggest a title",
        "chain",
    ),
]

WHOLE = [
    "Hello!",
    "",
    "Write 3 sentences about cats.",
    "Write five words that rhyme with moon.",
    "The 3 chapters of my thesis are done, what should I do next?",
    "I have written five chapters of my novel. Write a blurb for it.",
    "Summarise the first 3 chapters of Moby Dick.",
    "Review my 4 sections for grammar.",
    "Write a chapter about the sea.",
    "Write one paragraph about tea.",
    "Write 3 to 5 paragraphs about tea.",
    "Write at least 3 sections on tea.",
    "Write an essay of about five paragraphs.",
    "Explain what the 3 acts of Hamlet mean.",
    "Write a review of 2 chapters from The Hobbit.",
    'Translate into French: "Write a story in 3 chapters about a fox."',
    "Explain this prompt:\n```\nWrite a story in 3 chapters.\n1. Describe the heart.\n2. Describe the lungs.\n```",
    "What does `write 4 sections` do?",
    "Reply to this mail:\n> 1. What is the price?\n> 2. When can you deliver?",
    "Sort these items:\n- pear\n- apple\n- fig",
    "Write a story. Rules:\n- Write in the present tense\n- Give every character a name\n- Make it short",
    "Write a poem for my mother, my father and me.",
    "Write a letter for students, teachers and parents.",
    "Write a guide for cooking, cleaning and washing.",
    "What is the difference between a list, a tuple and a set?",
    "Tell me about Paris, Rome and Oslo.",
    "At first he was afraid, then he laughed, and finally he slept. Why?",
    "First of all, thanks! Write a poem.",
    "Write an essay without headings, with causes, effects and solutions.",
    "Are the headings too long?",
    "How many chapters does Dracula have?",
    "Which of these is prime?\n1. 21\n2. 23\n3. 25",
    "Make a salad from these ingredients:\n- tomatoes\n- onions\n- olives",
    "Summarise the following notes:\n- Describe the market\n- List the risks\n- Explain the budget",
    "Write a haiku about each of us.",
    "It has 3 parts and 4 sections.",
    "The plan has two parts. Tell me a joke.",
    "Write 500 chapters.",
    "Tell me each of the reasons why, in detail, this failed.",
    "Write a Python script:\n    1. Write a file\n    2. Write a log",
    "My day had three parts: morning, noon and night.",
]

SPLIT = [*COUNTED, *EACH, *HEADINGS, *LISTS, *STEPS]

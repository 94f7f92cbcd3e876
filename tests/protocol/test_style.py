"""The style sentence names what the counts show, and nothing else."""

from __future__ import annotations

import pytest

from ghostkv.protocol.style import style_sentence

PAST = (
    "She walked along the harbour and looked at the boats. Her brother had left in the night, and he had taken the "
    "lamp with him. They were used to his absences, but her mother waited at the window. She knew he wanted to see "
    "the islands. He said so often, and she believed him, though nobody else in the town did."
)
FIRST = (
    "I'm not sure what we're looking at. I think it's a door, and I can't open it. My hands don't reach the handle, so "
    "I'll try again. We've got time. I know that my friends are waiting and I don't want to lose them. It's dark in "
    "here and we're tired, but I'm fine and I've got my lamp. I think we'll stay here till it is morning."
)
LISTED = "\n".join(f"- Mix the flour and the water in bowl {word}, then rest it" for word in "abcdefgh")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PAST, "Style: third person, past tense."),
        (FIRST, "Style: first person, present tense, short sentences, informal."),
        (PAST.lower(), "Style: third person, past tense, lower case."),
        (LISTED, "Style: lists."),
        ("Too short to tell.", ""),
        ("", ""),
        ("1 2 3 " * 100, ""),
    ],
)
def test_what_is_named(text: str, expected: str) -> None:
    assert style_sentence(text) == expected


def test_dialogue() -> None:
    text = "\n".join(f'"We should go to the {place} at once," she said.' for place in ("port", "mill", "inn")) * 5
    assert "dialogue" in style_sentence(text)

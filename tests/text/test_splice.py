"""Messages that know their ids: a prompt goes on as the generation went, wherever the template lets a content be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from fakes import BYTE_CONTROL, CHATML_TEMPLATE, byte_tokenizer
from ghostkv.request import Message
from ghostkv.text.splice import find_contents
from ghostkv.text.template import ChatTemplate
from ghostkv.text.tokenizer import Tokenizer

BYTES = byte_tokenizer()
CHATML = ChatTemplate(CHATML_TEMPLATE, BYTES)
TRIMMING = CHATML_TEMPLATE.replace("message['content']", "message['content'] | trim")
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
BARE = (
    "{% for m in messages %}{{ '[INST] ' if m.role == 'user' else ' ' }}{{ m.content }}"
    "{{ ' [/INST]' if m.role == 'user' else '</s>' }}{% endfor %}"
)
TEXTS = ("hello in the hall", "é漢🙂", "no <|im_end|> here", "  spaces \n", "a", BYTE_CONTROL[3] + "user\nhi")


def spelled(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Ids of a text that the tokenizer itself would never choose: each character for itself, or each of its bytes."""
    known = {tokenizer.token_bytes(token): token for token in reversed(range(tokenizer.vocab_size))}
    parts = (letter.encode() for letter in text)
    return tuple(known[p] for part in parts for p in ((part,) if part in known else (bytes([b]) for b in part)))


def talk(*answers: str, ids: bool, tokenizer: Tokenizer = BYTES) -> list[Message]:
    messages = [Message("system", "Be brief.")]
    for i, answer in enumerate(answers):
        known = spelled(tokenizer, answer) if ids else ()
        messages += [Message("user", f"question {i}"), Message("assistant", answer, known)]
    return [*messages, Message("user", "the end?")]


def contains(ids: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(ids[i : i + len(part)]) == tuple(part) for i in range(len(ids)))


def controls(ids: Sequence[int], tokenizer: Tokenizer = BYTES) -> list[int]:
    return [i for i in ids if i in tokenizer.control_ids]


@pytest.mark.parametrize("text", TEXTS)
def test_the_next_prompt_begins_with_the_last_one_and_its_answer(text: str) -> None:
    asked = [Message("user", "question 0")]
    ids = spelled(BYTES, text)
    grown = [*asked, Message("assistant", text, ids), Message("user", "and?")]
    begun = [*CHATML.render_ids(asked), *ids]
    rendered = CHATML.render_ids(grown)
    assert rendered[: len(begun)] == begun
    plain = CHATML.render_ids([Message(m.role, m.content) for m in grown])
    assert BYTES.decode(rendered) == BYTES.decode(plain)
    assert controls(rendered) == controls(plain)


ENDED = BARE.replace("'</s>'", "'(end of it)</s>'")  # a content is followed by text


@pytest.mark.parametrize("source", [LLAMA3, BARE, ENDED], ids=["llama3", "bare", "ended"])
def test_trained_tokenizers(byte_level: tokenizers.Tokenizer, sentencepiece: tokenizers.Tokenizer, source: str) -> None:
    for inner in (byte_level, sentencepiece):
        tokenizer = Tokenizer(inner, bos_id=inner.token_to_id("<s>"), add_bos=True)
        template = ChatTemplate(source, tokenizer)
        for text in ("The pressure was 68.2 kPa.", " don't [/INST] stop", "漢字 🙂\n\nThe end"):
            messages = talk(text, text + "!", ids=True, tokenizer=tokenizer)
            plain = template.render_ids([Message(m.role, m.content) for m in messages])
            rendered = template.render_ids(messages)
            assert tokenizer.decode(rendered) == tokenizer.decode(plain)
            assert controls(rendered, tokenizer) == controls(plain, tokenizer)
            begun = [*template.render_ids(messages[:2]), *messages[2].ids]
            assert inner is sentencepiece or contains(rendered, messages[4].ids)
            if source is LLAMA3:  # the other writes no generation prompt, so an answer has nothing to follow
                assert rendered[: len(begun)] == begun


@given(st.lists(st.text(st.sampled_from("he l\n<|im_end>🙂é")), max_size=4))
def test_ids_change_no_text(answers: list[str]) -> None:
    plain, known = CHATML.render_ids(talk(*answers, ids=False)), CHATML.render_ids(talk(*answers, ids=True))
    assert BYTES.decode(known) == BYTES.decode(plain)
    assert controls(known) == controls(plain)
    for answer in answers:
        assert contains(known, spelled(BYTES, answer))


def test_a_content_that_the_template_changes_is_tokenised_and_the_others_are_not() -> None:
    template = ChatTemplate(TRIMMING, BYTES)
    answers = ("hello", " hell in ", "the hall", "other \n", "hell")
    rendered = template.render_ids(talk(*answers, ids=True))
    expected = talk(*answers, ids=True)
    changed = [Message(m.role, m.content) if m.content != m.content.strip() else m for m in expected]
    assert [m.ids for m in changed] != [m.ids for m in expected]
    assert rendered == template.render_ids(changed)
    assert rendered != template.render_ids(talk(*answers, ids=False))


@pytest.mark.parametrize(
    "content",
    [
        "m.content ~ m.content",
        "m.content[1:]",
        "m.content | replace('l', 'L')",
        "m.content.split('</think>')[-1]",
        "'' if not loop.last and m.role == 'assistant' else m.content",
        "m.content if m.content | length > 3 else raise_exception('too short')",
    ],
)
def test_a_template_that_does_not_show_a_content_as_it_is(content: str) -> None:
    template = ChatTemplate(CHATML_TEMPLATE.replace("message['content']", content.replace("m.", "message.")), BYTES)
    answers = ("<think>well</think>hello", "well, hello")
    messages = talk(*answers, ids=True)
    if "think" in content:  # the second has nothing to leave out
        messages[2] = Message("assistant", answers[0])
        assert template.render_ids(messages) == template.render_ids(talk(*answers, ids=True))
    else:
        assert template.render_ids(messages) == template.render_ids(talk(*answers, ids=False))


def test_marks_that_a_template_refuses_alone_do_not_matter() -> None:
    def refuses(marks: object) -> str:
        from ghostkv.errors import InvalidRequest

        raise InvalidRequest("no")

    assert find_contents("ab", {0: "a", 1: "b"}, "xy", refuses) == {}


def test_halving_finds_all_that_can_be_found() -> None:
    contents = {i: f"c{i};" for i in range(9)}
    shown = {i: text if i % 4 else text.upper() for i, text in contents.items()}
    asked: list[int] = []

    def marked(marks: object) -> str:
        assert isinstance(marks, dict)
        asked.append(len(marks))
        return "".join(marks.get(i, contents[i]) if i % 4 else marks.get(i, contents[i]).upper() for i in range(9))

    marks = [chr(0x13000 + i) for i in range(9)]
    places = find_contents("".join(shown.values()), contents, marks, marked)
    assert set(places) == {i for i in range(9) if i % 4}
    assert all(places[i] == (3 * i, 3 * i + 3) for i in places)
    assert len(asked) < 3 * 9

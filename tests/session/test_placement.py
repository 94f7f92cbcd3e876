"""Templates that show what is carried are taken, templates that lose or move it are refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from time import monotonic
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fakes import CHATML_TEMPLATE, byte_tokenizer
from ghostkv.config import EngineConfig
from ghostkv.errors import ModelError
from ghostkv.protocol.render import notes
from ghostkv.session.placement import check_placement
from ghostkv.session.worker import Worker
from ghostkv.text.template import ChatTemplate

TOKENIZER = byte_tokenizer(("[INST]", "[/INST]"))


def load_templates() -> ModuleType:
    """tests/text/test_template.py, whose five templates are those of real models."""
    spec = importlib.util.spec_from_file_location("templates", Path(__file__).parents[1] / "text" / "test_template.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEMPLATES = {name: entry[0] for name, entry in load_templates().TEMPLATES.items()}


def check(source: str) -> None:
    template = ChatTemplate(source, TOKENIZER, variables={"bos_token": "", "eos_token": ""})
    check_placement(template.render_ids, notes, TOKENIZER.encode, TOKENIZER.decode)


@pytest.mark.parametrize("name", TEMPLATES)
def test_real_templates_are_taken(name: str) -> None:
    check(TEMPLATES[name])


def test_chatml_is_taken() -> None:
    check(CHATML_TEMPLATE)


REFUSES_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
ONE_QUESTION = "{% if messages|length > 1 %}{{ raise_exception('one message') }}{% endif %}"


@pytest.mark.parametrize("guard", [REFUSES_SYSTEM, ONE_QUESTION])
def test_a_template_may_refuse_systems_and_answers(guard: str) -> None:
    check(guard + CHATML_TEMPLATE)


def changed(expression: str) -> str:
    """ChatML whose contents go through a filter."""
    return CHATML_TEMPLATE.replace("message['content']", f"({expression})")


LOSING = {
    "cut at the end": "message['content'][:1000]",
    "cut at the beginning": "message['content'][-200:]",
    "truncated": "message['content']|truncate(2000)",
    "first line": "message['content'].split('\\n')[0]",
    "lower case": "message['content']|lower",
    "escaped": "message['content']|e",
    "one line": "message['content'].split()|join(' ')",
    "without digits": "message['content'].replace('4', '')",
    "without what follows a blank line": "message['content'].split('\\n\\n')[:-1]|join('\\n\\n')",
}


@pytest.mark.parametrize("how", LOSING)
def test_a_template_that_changes_what_users_write_is_refused(how: str) -> None:
    with pytest.raises(ModelError, match="as they wrote it"):
        check(changed(LOSING[how]))


def test_the_message_says_how_much_is_kept() -> None:
    with pytest.raises(ModelError, match=r"it keeps the first 1000$"):
        check(changed(LOSING["cut at the end"]))


def test_a_template_that_shows_the_last_message_first_is_refused() -> None:
    with pytest.raises(ModelError, match="after the earlier ones"):
        check("{% for message in messages|reverse %}" + CHATML_TEMPLATE.partition("%}")[2])


def test_a_template_that_shows_nothing_is_refused() -> None:
    with pytest.raises(ModelError, match=r"it keeps the first 0$"):
        check("assistant:")


def test_a_template_that_refuses_every_question_is_refused() -> None:
    with pytest.raises(ModelError, match=r"refuses a plain question.*never"):
        check("{{ raise_exception('never') }}")


def test_a_worker_asks_when_it_is_made() -> None:
    lossy = ChatTemplate(changed("message['content'][:1000]"), TOKENIZER)
    backend: Any = SimpleNamespace(tokenizer=TOKENIZER, template=lossy)
    with pytest.raises(ModelError, match="as they wrote it"):
        Worker.embedded(backend, EngineConfig(), monotonic, "lossy")

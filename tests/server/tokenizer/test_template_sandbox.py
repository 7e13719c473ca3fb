"""A hostile chat template gets an error: it reaches nothing, and it comes to an end."""

from __future__ import annotations

import pytest

from refectory_server.errors import InvalidRequest
from refectory_server.tokenizer.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}]

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__.__mro__ }}",
    "{{ (messages | attr('__class__')).__mro__ }}",
    "{{ raise_exception.__globals__['re'] }}",
    "{{ strftime_now.__globals__['datetime'] }}",
    "{{ range.__subclasses__() }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ ('{0.__class__.__mro__}' | attr('format'))(messages) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__ }}",
]

SILENT = [
    "{{ messages.__class__ }}",
    "{{ messages | attr('__class__') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ messages | map(attribute='__class__') | join }}",
]
"""What only names an attribute is undefined, and written out as nothing."""

CHANGES = [
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update(role='system') }}",
    "{{ messages[0].pop('role') }}",
]

ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | map('string') | first if false }}"
    "{{ range(99999) | map('string') | list | length }}{% endfor %}",
    "{% for a in range(1000000000) %}{% endfor %}",
]


def grown(start: str, assignments: str, then: str = "") -> str:
    """A template that lets `ns.s` grow from `start`, 99 times."""
    return (
        f"{{% set ns = namespace(s={start}) %}}"
        f"{{% for i in range(99) %}}{assignments}{{% endfor %}}{then}"
    )


OVERSIZED = [
    "{{ 'x' * 10000000000 }}",
    "{{ 10000000000 * 'x' }}",
    "{{ [0] * 10000000000 }}",
    "{{ 10 ** (10 ** 10) }}",
    grown("9", "{% set ns.s = ns.s * ns.s %}"),
    grown("'xx'", "{% set ns.s = ns.s ~ ns.s %}"),
    grown("'xx'", "{% set ns.s = ns.s + ns.s %}"),
    grown("'xx'", "{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}"),
    grown("[1]", "{% set ns.s = [ns.s, ns.s] %}", "{{ ns.s }}"),
    grown("[1]", "{% set ns.s = [ns.s, ns.s] %}", "{{ ns.s | tojson }}"),
    grown("'x'", "{% set ns.s = ns.s | replace('x', 'xx') %}"),
    grown("'x'", "{% set ns.s = ns.s.replace('x', 'xxxx') %}"),
    grown("'x'", "{% set ns.s = [ns.s, ns.s, ns.s] | join %}"),
    grown("'x'", "{% set ns.s = ns.s.join([ns.s, ns.s, ns.s]) %}"),
    "{{ 'x' | center(10000000000) }}",
    "{{ 'x'.ljust(10000000000) }}",
    "{{ 'x'.zfill(10000000000) }}",
    "{{ 'x' | indent(10000000000) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10000000000, 1) }}",
    "{{ '%10000000000d' | format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w='10000000000') }}",
    "{{ messages | tojson(indent=10000000000) }}",
    "{{ strftime_now('%10000000000d') }}",
    "{{ lipsum(10000000000) }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_no_attribute_of_python_is_reached(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render(MESSAGES)
    assert caught.value.field == "messages"


@pytest.mark.parametrize("source", SILENT)
def test_an_attribute_of_python_is_undefined(source: str) -> None:
    assert ChatTemplate(source, {}).render(MESSAGES) == ""


@pytest.mark.parametrize("source", CHANGES)
def test_no_value_is_changed(source: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(InvalidRequest, match=r"unsafe|not safely callable"):
        ChatTemplate(source, {}).render(messages)
    assert messages == MESSAGES


@pytest.mark.parametrize("source", ENDLESS)
@pytest.mark.timeout(60)
def test_endless_work_is_ended(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"too much work|RecursionError|OverflowError|too big"):
        ChatTemplate(source, {}).render(MESSAGES)


@pytest.mark.parametrize("source", OVERSIZED)
@pytest.mark.timeout(60)
def test_oversized_values_are_refused_before_they_are_made(source: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"too much work|oversized|large|width|indent|undefined"
    ):
        ChatTemplate(source, {}).render(MESSAGES)


def test_constants_are_not_computed_without_a_limit_at_start() -> None:
    template = ChatTemplate("{{ 'x' | center(10000000000) if messages | length > 1 }}", {})
    assert template.render(MESSAGES) == ""


def test_one_rendering_does_not_use_up_the_next_ones_budget() -> None:
    template = ChatTemplate("{% for i in range(45000) %}{% endfor %}done", {})
    assert [template.render(MESSAGES) for _ in range(30)] == ["done"] * 30


def test_long_messages_are_within_the_budget() -> None:
    source = (
        "{% for m in messages %}{{ m.content | trim }}{{ '\n' ~ m.content.strip() }}{% endfor %}"
    )
    text = "x" * 1_000_000
    assert ChatTemplate(source, {}).render([{"role": "user", "content": text}] * 8) == (
        (text + "\n" + text) * 8
    )

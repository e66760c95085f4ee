"""Templates: what they render, what they refuse, and that nothing hostile gets far."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.workflows.language.templates import (
    TemplateError,
    compile_template,
    compile_tree,
    render_tree,
    tree_paths,
)
from holdfast.workflows.secrets import Secrets
from tests.workflows.language.attacks import outcomes, shared
from tests.workflows.language.test_expressions import Trap

SCOPE: dict[str, Any] = {
    "steps": {"search": {"output": {"items": [{"n": 2, "t": "b"}, {"n": 1, "t": "a"}], "title": "Hi"}}},
    "output": {"items": ["x", "y"], "keys": 1, "values": {"get": 2}},
    "inputs": {"none": None, "yes": True, "name": "Ada", "n": 3, "ratio": 0.5, "tags": ["b", "a", "b"]},
}

RENDERS: dict[str, str] = {
    "plain text": "plain text",
    "no { tags } here %": "no { tags } here %",
    "Hello {{ inputs.name }}!": "Hello Ada!",
    "{{ inputs.none }}|{{ inputs.yes }}|{{ inputs.n }}|{{ inputs.ratio }}": "|true|3|0.5",
    "={{ output.items }}": '=["x", "y"]',
    "={{ output }}": '={"items": ["x", "y"], "keys": 1, "values": {"get": 2}}',
    "={{ output.keys }}{{ output.values.get }}": "=12",
    "={{ {'ü': 1} }}": '={"ü": 1}',
    "{% if inputs.n > 2 %}big{% elif inputs.n %}small{% else %}none{% endif %}": "big",
    "{% for i in output.items %}{{ loop.index }}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}": "1x,2y",
    "{% for i in [] %}a{% else %}nothing{% endfor %}": "nothing",
    "{% for k, v in output['values'].items() %}{{ k }}={{ v }}{% endfor %}": "get=2",
    "{% for key in output %}{{ key }};{% endfor %}": "items;keys;values;",
    "{% for i in range(5) if i is odd %}{{ i }}/{{ loop.length }} {% endfor %}": "1/2 3/2 ",
    "{% for i in [1, 2] %}{% for j in [3, 4] %}{{ i * j }} {% endfor %}{{ loop.index }};{% endfor %}": "3 4 1;6 8 2;",
    "{% set total = inputs.n * 2 %}{{ total }}": "6",
    "{% for i in [1] %}{% set x = i %}{{ x }}{% endfor %}{{ x is defined }}": "1false",
    "- a\n{% if true %}\n- b\n{% endif %}\n- c\n": "- a\n- b\n- c\n",
    "a {{- ' b ' -}} c": "a b c",
    "{% raw %}{{ x }}{% endraw %}": "{{ x }}",
    "${#name} {{ 1 }} #}": "${#name} 1 #}",
    "{{ inputs.name | upper }} {{ inputs.name.lower() }} {{ 'a b' | title }}": "ADA ada A B",
    "{{ inputs.nope | default('d') }}{{ nope.a.b | d('e') }}{{ inputs.none | default('f') }}": "def",
    "{{ '' | default('g', true) }}{{ inputs.none.x is defined }}": "gfalse",
    "{{ inputs.tags | join(', ') }} {{ inputs.tags | length }}": "b, a, b 3",
    "{{ inputs.tags | unique | sort | join }}": "ab",
    "{{ steps.search.output['items'] | map(attribute='t') | join(',') }}": "b,a",
    "{{ steps.search.output['items'] | sort(attribute='n') | first | tojson }}": '{"n": 1, "t": "a"}',
    "{{ steps.search.output['items'] | selectattr('n', 'gt', 1) | map(attribute='t') | list }}!": '["b"]!',
    "{{ steps.search.output['items'] | rejectattr('nope') | length }}!": "2!",
    "{{ steps.search.output['items'] | sum(attribute='n') }}!": "3!",
    "{% for n, g in steps.search.output['items'] | groupby('n') %}{{ n }}{{ g | length }} {% endfor %}": "11 21 ",
    "{{ ['a', 'b'] | map('upper') | join }} {{ [1, 2, 3] | select('even') | list }}": "AB [2]",
    "{{ {'b': 1, 'a': 2} | dictsort }}!": '[["a", 2], ["b", 1]]!',
    "{{ 'a,b' | split(',') | last }} {{ ' x ' | trim }} {{ 'aXb' | replace('X', '-') }}": "b x a-b",
    "{{ '3' | int + 1 }} {{ 'x' | int(0) }} {{ 2.567 | round(1) }} {{ 5 | float }} {{ -3 | abs }}": "4 0 2.6 5.0 3",
    "{{ [1, 2] | min }}{{ [1, 2] | max }} {{ 'hello big world' | truncate(9) }}": "12 hello…",
    "{{ 'a\nb' | indent(2) }}": "a\n  b",
    "{{ [1] | tojson(indent=1) }}": "[\n 1\n]",
    "{{ 'a b&c' | urlencode }} {{ {'q': 'a b'} | urlencode }}": "a%20b%26c q=a%20b",
    "{{ 'a' ~ 1 ~ none ~ [2] }}": "a1[2]",
    "{{ 'yes' if inputs.yes else 'no' }}{{ 'gone' if false }}": "yes",
    "{{ 1 < 2 and 'a' in 'abc' and 3 not in [1] }}{{ not true or false }}": "truefalse",
    "{{ 7 // 2 }} {{ 7 % 4 }} {{ 7 / 2 }} {{ -1 }} {{ +1 }} {{ 2 * 'ab' }}": "3 3 3.5 -1 1 abab",
    "{{ [1, 2, 3][1:] }} {{ 'abc'[0] }} {{ (1, 2)[-1] }}": "[2, 3] a 2",
    "{{ inputs.none is none }} {{ null is null }} {{ 1 is number }} {{ 'a' is string }}": "true true true true",
    "{{ {} is mapping }} {{ [] is sequence }} {{ x is undefined }}": "true true true",
    "{{ 9 is divisibleby 3 }} {{ 1 is eq 1 }} {{ 1 is not none }}": "true true true",
    "{{ 'line\r\nend' }}": "line\nend",
    "windows\r\n{{ 1 }}\r\n": "windows\n1\n",
}  # fmt: skip


@pytest.mark.parametrize("text", RENDERS)
def test_a_template_renders(text: str) -> None:
    assert compile_template(text).render(SCOPE) == RENDERS[text]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ output.items }}", ["x", "y"]),
        ("{{ inputs.none }}", None),
        ("{{ inputs.n + 1 }}", 4),
        ("{{ 'text' }}", "text"),
        ("{{ output.items }} ", '["x", "y"] '),
        ("{{ 1 }}{{ 2 }}", "12"),
        ("{% if true %}{{ 1 }}{% endif %}", "1"),
        ("plain", "plain"),
        ("{# no remark #}", "{# no remark #}"),
    ],
)
def test_one_expression_alone_keeps_its_value(text: str, value: Any) -> None:
    assert compile_template(text).value(SCOPE) == value


def test_a_value_alone_is_handed_on_untouched() -> None:
    trap = Trap()

    assert compile_template("{{ it }}").value({"it": trap}) is trap
    assert object.__getattribute__(trap, "touched") == []


def test_text_without_tags_is_plain_and_stays_as_it_is() -> None:
    template = compile_template("a\r\nb } {")

    assert template.is_plain
    assert template.render({}) is template.text
    assert not compile_template("{{ 1 }}").is_plain
    assert compile_template("x" * 200_000).is_plain


REFUSED_WHEN_READ: dict[str, tuple[int, int, str]] = {
    "{{ unclosed": (1, 4, "not a template"),
    "a\n {% if x %}": (2, 10, "not a template"),
    "{{ a b }}": (1, 6, "expected token 'end of print statement', got 'b'"),
    "x\ny {{ 1 ? }}": (2, 8, "unexpected char '?'"),
    "{% foo %}": (1, 4, "unknown tag 'foo'"),
    "{% endif %}": (1, 4, "not a template"),
    "{% raw %}x": (1, 10, "Missing end of raw"),
    "{{ 2 ** 3 }}": (1, 4, "** is not available"),
    "{{ x | attr('y') }}": (1, 4, "there is no function 'attr'"),
    "ab {{ x | uper }}": (1, 7, "did you mean 'upper'"),
    "{{ x is fine }}": (1, 4, "there is no test 'fine'"),
    "{{ x | join(1, 2, 3, 4) }}": (1, 4, "join takes (values, separator='', attribute=None)"),
    "{{ x | map(*y) }}": (1, 4, "one by one"),
    "{{ x() }}": (1, 4, "there is no function 'x'"),
    "{{ x.y() }}": (1, 4, ".y(…) cannot be called"),
    "{{ x[0]() }}": (1, 4, "only the functions of the table"),
    "{{ '{}'.format(1) }}": (1, 4, ".format(…) cannot be called"),
    "{{ x | format(1) }}": (1, 4, "there is no function 'format'"),
    "{{ x | center(9) }}": (1, 4, "there is no function 'center'"),
    "{{ x | wordwrap(9) }}": (1, 4, "there is no function 'wordwrap'"),
    "{{ x | batch(9) }}": (1, 4, "there is no function 'batch'"),
    "{{ x | slice(9) }}": (1, 4, "there is no function 'slice'"),
    "{{ x | xmlattr }}": (1, 4, "there is no function 'xmlattr'"),
    "{{ x | pprint }}": (1, 4, "there is no function 'pprint'"),
    "{{ lipsum(9) }}": (1, 4, "there is no function 'lipsum'"),
    "{{ cycler(1) }}": (1, 4, "there is no function 'cycler'"),
    "{{ joiner(1) }}": (1, 4, "there is no function 'joiner'"),
    "{{ namespace(a=1) }}": (1, 4, "there is no function 'namespace'"),
    "{{ dict(a=1) }}": (1, 4, "there is no function 'dict'"),
    "{{ self.x() }}": (1, 4, "cannot be called"),
    "{% macro m() %}{{ m() }}{% endmacro %}": (1, 4, "{% macro %} is not available"),
    "{% call x() %}{% endcall %}": (1, 4, "{% call %} is not available"),
    "{% include 'a' %}": (1, 4, "{% include %} is not available"),
    "{% import 'a' as b %}": (1, 4, "{% import %} is not available"),
    "{% from 'a' import b %}": (1, 4, "{% from %} is not available"),
    "{% extends 'a' %}": (1, 4, "{% extends %} is not available"),
    "{% block a %}{% endblock %}": (1, 4, "{% block %} is not available"),
    "{% filter upper %}a{% endfilter %}": (1, 4, "{% filter %} is not available"),
    "{% with a = 1 %}{% endwith %}": (1, 4, "{% with %} is not available"),
    "{% set a %}b{% endset %}": (1, 4, "{% set … endset %} is not available"),
    "{% set a.b = 1 %}": (1, 8, "only plain names"),
    "{% autoescape true %}{% endautoescape %}": (1, 1, "is not available"),
    "{% for a in b %}{{ loop(a) }}{% endfor %}": (1, 20, "only the functions of the table"),
    "{% for a in b recursive %}{% endfor %}": (1, 4, "a recursive loop is not available"),
    "{{ " + "9" * 5000 + " }}": (1, 1, "cannot be read"),
    "{{ " + "9" * 100 + " }}": (1, 4, "too large"),
    "{{ 1 }}" + " " * 100_000: (1, 1, "100,000 characters"),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED_WHEN_READ)
def test_a_template_is_refused_when_it_is_read(text: str) -> None:
    line, column, words = REFUSED_WHEN_READ[text]

    with pytest.raises(TemplateError) as caught:
        compile_template(text)

    assert words in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


FAILS: dict[str, tuple[int, int, str]] = {
    "a\nbc {{ steps.serch }}": (2, 7, "in 'steps.serch' (line 2, column 7): there is no 'serch' in steps"),
    "{{ inptus.name }}": (1, 4, "there is no 'inptus' here"),
    "{{ inputs.none.x }}": (1, 4, "inputs.none is nothing (null); it has no 'x'"),
    "{{ ''.__class__ }}": (1, 4, "it has no '__class__'"),
    "{{ inputs.__class__.__mro__ }}": (1, 4, "there is no '__class__' in inputs"),
    "{{ inputs['__class__'] }}": (1, 4, "there is no '__class__' in inputs"),
    "{{ output.items.append }}": (1, 4, "such as output.items[0]"),
    "{{ self }}": (1, 4, "there is no 'self' here"),
    "{{ range }}": (1, 4, "there is no 'range' here"),
    "{{ loop }}": (1, 4, "there is no 'loop' here"),
    "{% for i in [1] %}{{ loop.cycle }}{% endfor %}": (1, 22, "there is no 'cycle' in loop"),
    "{% for i in inputs.name %}{% endfor %}": (1, 13, "a list is needed here, not the text 'Ada'"),
    "{% for a, b in [[1]] %}{% endfor %}": (1, 16, "a, b need a list of 2, not a list of 1"),
    "{{ inputs.tags | map(attribute='x') }}": (1, 4, "is the text 'b'; it has no 'x'"),
    "{{ [{}] | map(attribute='a.b') }}": (1, 4, "there is no 'a' in the item"),
    "{{ inputs.tags | map('nope') }}": (1, 4, "map cannot use 'nope'"),
    "{{ inputs.tags | map('replace') }}": (1, 4, "too few or too many values"),
    "{{ inputs.tags | select('nope') }}": (1, 4, "there is no test 'nope'"),
    "{{ inputs.tags | select('gt') }}": (1, 4, "too few or too many values"),
    "{{ '%s' % 3 }}": (1, 4, "% does not fill in texts"),
    "{{ 1 / 0 }}": (1, 4, "divides by zero"),
}  # fmt: skip


@pytest.mark.parametrize("text", FAILS)
def test_an_error_names_the_place_and_what_was_found(text: str) -> None:
    line, column, words = FAILS[text]
    template = compile_template(text)

    with pytest.raises(TemplateError) as caught:
        template.render(SCOPE)

    assert words in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert isinstance(caught.value, HoldfastError)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("plain", set()),
        ("{{ steps.a.output.items[0].t }} {{ inputs['n'] }}", {("steps", "a", "output", "items"), ("inputs", "n")}),
        ("{% for i in o.items %}{{ i.n }}{{ loop.index }}{% endfor %}{{ i.y }}", {("o", "items"), ("i", "y")}),
        ("{% set a = inputs.b %}{{ a.c }}", {("inputs", "b")}),
        ("{% if visits.a > 1 %}{{ steps[item].output }}{% endif %}", {("visits", "a"), ("steps",), ("item",)}),
        ("{{ x.y | default(z) | join(w.v) }}", {("x", "y"), ("z",), ("w", "v")}),
        ("{{ a.b.items() }}{{ null }}{{ true }}", {("a", "b")}),
    ],
)  # fmt: skip
def test_the_paths_a_template_reads_are_known_before_it_runs(text: str, paths: set[Any]) -> None:
    assert compile_template(text).paths == paths


def test_every_value_goes_through_the_hook_even_constants() -> None:
    seen: list[Any] = []

    def place(value: Any) -> str:
        seen.append(value)
        return f"<{len(seen)}>"

    template = compile_template(
        "a {{ inputs.tags }} {% for i in [1, 2] %}{{ i }}{% endfor %} {{ 'constant' }} {{ none }}"
    )

    assert template.render(SCOPE, place) == "a <1> <2><3> <4> <5>"
    assert seen == [["b", "a", "b"], 1, 2, "constant", None]


def test_what_a_value_contains_is_never_read_as_a_template() -> None:
    scope = {"inputs": {"text": "{{ inputs.secret }}{% for %}", "secret": "no"}}

    assert compile_template("{{ inputs.text }}").render(scope) == "{{ inputs.secret }}{% for %}"
    assert render_tree(compile_tree({"a": "{{ inputs.text }}"}), scope) == {"a": scope["inputs"]["text"]}


def test_a_tree_of_templates_keeps_its_shape_and_its_keys() -> None:
    compiled = compile_tree(
        {"{{ key }}": ["{{ inputs.n }}", {"a": "n={{ inputs.n }}"}, 7, None, ("x",)], "b": True}
    )

    assert render_tree(compiled, SCOPE) == {"{{ key }}": [3, {"a": "n=3"}, 7, None, ["x"]], "b": True}
    assert tree_paths(compiled) == {("inputs", "n")}


def test_an_error_in_a_tree_says_where_it_is() -> None:
    with pytest.raises(TemplateError) as caught:
        compile_tree({"a": [1, {"b": "x\n{{ }"}]})
    assert (caught.value.path, caught.value.line) == (("a", 1, "b"), 2)

    with pytest.raises(TemplateError) as caught:
        render_tree(compile_tree({"a": ["{{ nope }}"]}), {})
    assert caught.value.path == ("a", 0)


def test_a_tree_that_shares_its_parts_endlessly_is_refused() -> None:
    with pytest.raises(TemplateError, match="too many values"):
        compile_tree(shared(60))


def test_secrets_can_be_read_but_not_shown_as_a_whole() -> None:
    scope = {"secrets": Secrets({"HOLDFAST_SECRET_KEY": "s3cret-value"})}

    assert compile_template("{{ secrets.KEY }}").render(scope) == "s3cret-value"
    assert (
        compile_template("{{ secrets.OTHER | default('-') }}{{ secrets.KEY is defined }}").render(scope)
        == "-true"
    )
    with pytest.raises(TemplateError, match="set HOLDFAST_SECRET_OTHER"):
        compile_template("{{ secrets.OTHER }}").render(scope)
    for text in (
        "{{ secrets }}|",
        "{% for s in secrets %}{% endfor %}",
        "{{ secrets|items }}",
        "{{ secrets|length }}",
    ):
        with pytest.raises(TemplateError) as caught:
            compile_template(text).render(scope)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["{{ t }}|", "{{ t.x }}", "{{ t | upper }}", "{{ t ~ 'a' }}", "{% if t %}{% endif %}",
     "{% for i in t %}{% endfor %}",
     "{{ t == 1 }}", "{{ [t] }}|", "{{ t() }}", "{{ [t] | sort }}", "{{ t | length }}", "{{ t is even }}"],
)  # fmt: skip
def test_nothing_of_a_foreign_object_is_ever_called_or_read(text: str) -> None:
    trap = Trap()

    with pytest.raises(TemplateError):
        compile_template(text).value({"t": trap})

    assert object.__getattribute__(trap, "touched") == []


ATTACKS = [
    "{{ 'a' * 100000000 }}",
    "{{ 10 ** 100000000 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a' | indent(1000000000) }}",
    "{{ 'a' | wordwrap(1) }}",
    "{{ range(10000000000) }}",
    "{% for a in range(1000000) %}{% for b in range(1000000) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(9999) %}{% for c in [1] %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in range(1000) %}{% for b in range(1000) %}{% set x = a * b %}{% endfor %}{% endfor %}",
    "{% for a in range(300000) %}0123456789{% endfor %}",
    "{% for a in range(100) %}{{ 'a' * 100000 }}{% endfor %}",
    "{% for a in range(1000) %}{{ [0] * 100000 }}{% endfor %}",
    "{% for a in range(1000) %}{{ (range(100000) | sort)[0] }}{% endfor %}",
    "{% for a in range(10000) %}{{ ('a' * 900000) | length }}{% endfor %}",
    "{{ 'a' * 900000 ~ 'a' * 900000 }}",
    "{{ 'a' * 900000 }}{{ 'a' * 900000 }}{{ 'a' * 900000 }}",
    "{{ ('a' * 1000) | replace('', 'b' * 100000) }}",
    "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "{{ " + "[" * 20000 + "]" * 20000 + " }}",
    "{{ " + "-" * 50000 + "1 }}",
    "{{ " + "not " * 20000 + "1 }}",
    "{{ a" + ".b" * 40000 + " }}",
    "{{ 1" + " + 1" * 20000 + " }}",
    "{{ 1" + " | abs" * 10000 + " }}",
    "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "{% for a in [1] %}" * 2000 + "{% endfor %}" * 2000,
    "{{" * 40000,
    "{%" * 40000,
    "{{ '" + "\\" * 90000,
    "{{ " + "1_" * 40000 + " }}",
    "{% raw" + " " * 90000,
    "{{ 0x" + "f" * 90000 + " }}",
]
ATTACKS_BY_DATA = [
    "{{ one }}|",
    "{{ one == other }}",
    "{{ endless }}|",
    "{{ deep }}|",
    "{{ number }}|",
    "{{ same }}|",
    "{{ same | join }}",
    "{{ same | sort | first }}",
    "{% for text in same %}{{ text }}{% endfor %}",
    "{% for text in same %}{{ text | upper | length }}{% endfor %}",
    "{% for text in same %}{% for other in same %}{% endfor %}{% endfor %}",
    "{{ long ~ long }}",
    "{{ items.__class__.__mro__ }}",
]  # fmt: skip


@pytest.mark.parametrize(("attacks", "scope"), [(ATTACKS, "{}"), (ATTACKS_BY_DATA, "hostile")])
def test_what_is_hostile_is_refused_with_little_memory_and_little_time(
    attacks: list[str], scope: str
) -> None:
    found = outcomes("template", attacks, scope)

    assert {
        text[:60]: outcome for text, outcome in zip(attacks, found, strict=True) if outcome != "refused"
    } == {}


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_a_template_or_is_refused(text: str) -> None:
    for source in (text, f"{{{{ {text} }}}}", f"{{% {text} %}}", f"{{% if 1 %}}{text}{{% endif %}}"):
        try:
            compile_template(source).render(SCOPE)
        except TemplateError as error:
            assert error.line >= 1 and error.column >= 1


WORDS = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "if",
    "for",
    "in",
    "endif",
    "endfor",
    "else",
    "set",
    "=",
    "x",
    ".",
    "|",
]
WORDS += [
    "upper",
    "(",
    ")",
    "[",
    "]",
    "1",
    "'a'",
    "is",
    "defined",
    "not",
    "~",
    "-",
    "\n",
    "output",
    "items",
    "loop",
    ",",
]


@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_any_sequence_of_words_is_a_template_or_is_refused(words: list[str]) -> None:
    with contextlib.suppress(TemplateError):
        compile_template(" ".join(words)).render(SCOPE)


@given(st.text(st.characters(codec="utf-8")))
def test_any_value_arrives_unchanged(text: str) -> None:
    assert compile_template("<{{ it }}>").render({"it": text}) == f"<{text}>"

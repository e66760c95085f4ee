"""Conditions: what they can say, what they refuse, and that nothing hostile gets far."""

from __future__ import annotations

import contextlib
import enum
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.state.ops import freeze
from holdfast.workflows.language.templates import TemplateError, compile_expression
from tests.workflows.language.attacks import outcomes

SCOPE: dict[str, Any] = {
    "steps": {
        "search": {"output": {"count": 3, "items": ["a", "b"], "title": "Hello World", "nothing": None}},
        "my-step": {"output": [{"price": 2.5}, {"price": 4}]},
    },
    "output": {"items": 1, "keys": 2, "get": 3, "__class__": 4, "_private": 5},
    "inputs": {"name": "Ada", "tags": ["x", "y"], "none": None, "yes": True},
    "empty": None,
}

WORKS: dict[str, Any] = {
    "steps.search.output.count > 2": True,
    "{{ steps.search.output.count > 2 }}": True,
    "  {{steps.search.output.count}}  ": 3,
    "steps['my-step'].output[0].price": 2.5,
    'steps["my-step"].output[-1]["price"] == 4': True,
    "output.items": 1,
    "output.keys + output.get": 5,
    "output.__class__": 4,
    "output._private": 5,
    "true and not false": True,
    "True and not False": True,
    "null == none and None == null": True,
    "empty == null": True,
    "empty is none": True,
    "empty is not null": False,
    "inputs.yes is true": True,
    "1 < 2 <= 2 != 3": True,
    "1 < 2 < 2": False,
    "'Ada' in inputs.name and 'x' in inputs.tags and 'name' in inputs": True,
    "'q' not in inputs.tags": True,
    "[1, [2, {'a': 3}]] == [1, (2, {'a': 3})]": True,
    "{'a': 1} == {'b': 1}": False,
    "1 == 1.0": True,
    "'1' == 1": False,
    "null == 0": False,
    "inputs.none or 'fallback'": "fallback",
    "inputs.name and inputs.tags": ["x", "y"],
    "false and missing": False,
    "true or missing": True,
    "'big' if steps.search.output.count >= 3 else missing": "big",
    "1 + 2 * 3 - 4 / 2": 5.0,
    "7 // 2 + 7 % 2": 4,
    "-3 + +1": -2,
    "'a' + 'b' * 3": "abbb",
    "[1] + [2] * 2": [1, 2, 2],
    "[1, 2, 3][1:]": [2, 3],
    "'hello'[::-1]": "olleh",
    "'hello'[1]": "e",
    "(1, 2)": [1, 2],
    "{'a': 1}['a']": 1,
    "len(inputs.tags) + len('abc') + len(inputs)": 9,
    "min(3, 1, 2) + max([1, 5])": 6,
    "sum([1, 2.5])": 3.5,
    "abs(-2) + round(2.6)": 5,
    "round(2.345, 1)": 2.3,
    "int('12') + int(3.9)": 15,
    "int('x', 0)": 0,
    "float('1.5')": 1.5,
    "str(1) + str(true) + str(null) + str([1, 'a'])": '1true[1, "a"]',
    "bool([]) or bool('a')": True,
    "any([0, 1]) and all([1, 1])": True,
    "sorted([3, 1, 2])": [1, 2, 3],
    "sorted(['b', 'a'], reverse=true)": ["b", "a"],
    "lower('AB') + upper('ab')": "abAB",
    "strip('  a ') + strip('xax', 'x')": "aa",
    "split('a,b', ',') + split(' a  b ')": ["a", "b", "a", "b"],
    "join(inputs.tags, '-')": "x-y",
    "replace('aXbX', 'X', '')": "ab",
    "startswith('abc', 'a') and endswith('abc', 'c')": True,
    "contains('abc', 'b') and contains([1], 1)": True,
    "keys({'a': 1}) + values({'a': 1})": ["a", 1],
    "first([1, 2]) + last([1, 2])": 3,
    "default(inputs.nope, 'd')": "d",
    "default(nothing_at_all.a.b, 1)": 1,
    "default(empty.a, 1)": 1,
    "default(inputs.none, 1)": 1,
    "default(inputs.name, 1)": "Ada",
    "default('', 'd', true)": "d",
    "defined(inputs.name)": True,
    "defined(inputs.none)": True,
    "defined(inputs.name.x) or defined(inputs.nope) or defined(empty.x)": False,
    "inputs.name.upper()": "ADA",
    "', '.join(inputs.tags)": "x, y",
    "steps.search.output.get('nope', 7)": 7,
    "fromjson('{\"a\": [1]}').a[0]": 1,
    "(1 +\n 2)": 3,
    "1 +\n 2": 3,
    "inputs.name | upper": "ADA",
    "inputs.tags | length > 1": True,
    "'é' + 'ü'": "éü",
}


@pytest.mark.parametrize("text", WORKS)
def test_an_expression_comes_to(text: str) -> None:
    assert compile_expression(text).value(SCOPE) == WORKS[text]


REFUSED_WHEN_READ: dict[str, tuple[int, str]] = {
    "": (1, "is empty"),
    "   ": (1, "is empty"),
    "{{ }}": (1, "is empty"),
    "{{ 1 }} or {{ 2 }}": (6, "not an expression"),
    "1 +": (3, "not an expression"),
    "a = 1": (3, "== compares"),
    "a && b": (3, "write and, or, not"),
    "1) + (2": (2, "unexpected ')'"),
    "1, 2": (2, "unexpected ','"),
    "# nothing": (1, "unexpected char '#'"),
    "2 + x ** 2": (5, "multiply instead"),
    "a @ b": (3, "unexpected char '@'"),
    "a << 2": (4, "unexpected '<'"),
    "a & b": (3, "unexpected char '&'"),
    "~a": (1, "unexpected '~'"),
    "[x for x in a]": (4, "got 'for'"),
    "{x for x in a}": (4, "got 'for'"),
    "(x for x in a)": (4, "got 'for'"),
    "lambda: 1": (7, "unexpected ':'"),
    "f'{a}'": (2, "not an expression"),
    "(a := 1)": (4, "nothing can be assigned"),
    "[*a]": (2, "unexpected '*'"),
    "{**a}": (2, "unexpected '**'"),
    "{1, 2}": (3, "expected token ':'"),
    "len(*a)": (1, "one by one"),
    "len(**a)": (1, "one by one"),
    "await a": (7, "unexpected 'a'"),
    "1j": (2, "unexpected 'j'"),
    "b'a'": (2, "not an expression"),
    "...": (1, "unexpected '.'"),
    "a is b": (1, "there is no test 'b'"),
    "1 + lenn(a)": (5, "did you mean 'len'"),
    "now()": (1, "there is no function 'now'"),
    "matches('a', 'b')": (1, "there is no function 'matches'"),
    "eval('1')": (1, "there is no function 'eval'"),
    "__import__('os')": (1, "there is no function '__import__'"),
    "''.format(1)": (1, ".format(…) cannot be called"),
    "a.b.c()": (1, ".c(…) cannot be called"),
    "a[0]()": (1, "only the functions of the table"),
    "(len)(1)(2)": (2, "only the functions of the table"),
    "len()": (1, "len takes (value)"),
    "len(1, 2)": (1, "len takes (value)"),
    "default()": (1, "default takes"),
    "sorted([], key=1)": (1, "sorted takes (values, reverse=False, attribute=None)"),
    "1" * 90: (1, "too large"),
    "x" * 4001: (1, "more than 4,000 characters"),
    "+".join(["1"] * 1500): (1, "too deeply"),
}


@pytest.mark.parametrize("text", REFUSED_WHEN_READ)
def test_an_expression_is_refused_when_it_is_read(text: str) -> None:
    column, words = REFUSED_WHEN_READ[text]

    with pytest.raises(TemplateError) as caught:
        compile_expression(text)

    if words != "too deeply":  # Python's versions differ in how they find it.
        assert words in str(caught.value)
        assert caught.value.column == column


FAILS: dict[str, tuple[int, str]] = {
    "steps.serch.output": (
        1,
        "there is no 'serch' in steps; it has 'search', 'my-step'; did you mean 'search'?",
    ),
    "1 + stepz": (5, "there is no 'stepz' here; there is 'steps'"),
    "{{ 1 + stepz }}": (8, "did you mean 'steps'?"),
    "empty.x": (1, "empty is nothing (null); it has no 'x'"),
    "inputs.name.x": (1, "inputs.name is the text 'Ada'; it has no 'x'"),
    "''.__class__": (1, "it has no '__class__'"),
    "inputs.__class__": (1, "there is no '__class__' in inputs"),
    "inputs.tags.x": (1, "such as inputs.tags[0]"),
    "inputs.tags[2]": (1, "has 2 item(s), so there is no [2]"),
    "inputs[[1]]": (1, "cannot be a key"),
    "inputs.name < 3": (1, "cannot compare the text 'Ada' < the number 3"),
    "null > 1": (1, "cannot compare nothing (null) > the number 1"),
    "1 + 'a'": (1, "cannot add the number 1 and the text 'a'; str(…)"),
    "'%d' % 3": (1, "% does not fill in texts"),
    "1 / 0": (1, "divides by zero"),
    "1.5 % 0": (1, "divides by zero"),
    "int('x')": (1, "the text 'x' is not a whole number"),
    "max([])": (1, "an empty list has no largest value"),
    "sorted([1, 'a'])": (1, "only numbers or only texts"),
    "sum(['a'])": (1, "a number is needed"),
    "any('abc')": (1, "split(…) makes a list"),
    "first([])": (1, "has 0 item(s)"),
    "fromjson('{')": (1, "is not JSON"),
    "{[1]: 2}": (1, "cannot be a key"),
    "'a'['b']": (1, "it has no 'b'"),
    "3 in 4": (1, "nothing can be in the number 4"),
    "split('a', '')": (1, "a separator that is not empty"),
    "[1][::0]": (1, "cannot be 0"),
    "-'a'": (1, "a number is needed"),
}


@pytest.mark.parametrize("text", FAILS)
def test_an_error_names_the_place_and_what_was_found(text: str) -> None:
    column, words = FAILS[text]
    expression = compile_expression(text)

    with pytest.raises(TemplateError) as caught:
        expression.value(SCOPE)

    assert words in str(caught.value)
    assert caught.value.column == column
    assert isinstance(caught.value, HoldfastError)


def test_columns_count_characters_over_several_lines() -> None:
    with pytest.raises(TemplateError) as caught:
        compile_expression("'éé' == 'ü' or\n  nope").value({})

    assert (caught.value.line, caught.value.column, caught.value.offset) == (2, 3, 17)


def test_an_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(TemplateError("it fails", 2, 3)))

    assert (str(error), error.line, error.column) == ("it fails", 2, 3)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "steps.search.output.count > inputs['n']",
            {("steps", "search", "output", "count"), ("inputs", "n")},
        ),
        ("steps['my-step'].output[0].title", {("steps", "my-step", "output")}),
        ("steps[inputs.which].output", {("steps",), ("inputs", "which")}),
        ("defined(steps.a) and default(steps.b.output, 1)", {("steps", "a"), ("steps", "b", "output")}),
        ("output.upper() + len(item)[1:]", {("output",), ("item",)}),
        ("true or null", set()),
        ("{'k': a}['k'] + [b][0].c", {("a",), ("b",)}),
    ],
)
def test_the_paths_an_expression_reads_are_known_before_it_runs(text: str, names: set[Any]) -> None:
    assert compile_expression(text).paths == names


def test_read_only_containers_and_derived_scalars_are_plain_data() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    scope, _ = freeze({"a": {"b": [1, 2]}, "c": Colour.RED})

    assert compile_expression("a.b[1] + len(a.b) + len(a)").value(scope) == 5
    assert compile_expression("c == 'red' and upper(c) == 'RED'").value(scope) is True
    assert type(compile_expression("c").value(scope)) is str


class Trap:
    """An object that records whether it was accessed."""

    def __init__(self) -> None:
        object.__setattr__(self, "touched", [])

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "touched").append(name)
        return object.__getattribute__(self, name)

    def _spring(self, *args: Any) -> Any:
        object.__getattribute__(self, "touched").append("called")
        return 1

    __str__ = __repr__ = __len__ = __bool__ = __eq__ = __lt__ = __add__ = __radd__ = _spring
    __iter__ = __getitem__ = __call__ = __hash__ = __contains__ = __int__ = __index__ = _spring


@pytest.mark.parametrize(
    "text",
    [
        "trap.x", "trap[0]", "trap['x']", "trap == 1", "1 == trap", "[trap] == [trap2]", "trap < 1", "trap + 1",
        "1 + trap", "not trap", "trap and 1", "1 if trap else 2", "len(trap)", "str(trap)", "str([trap])",
        "bool(trap)", "int(trap)", "trap in [1]", "1 in trap", "[1][trap]", "{'a': 1}[trap]", "{trap: 1}",
        "sorted([trap, trap2])", "max(trap, trap2)", "sum([trap])", "join([trap])", "any([trap])", "-trap",
        "trap * 2", "'a' * trap", "[1][trap:]", "unique([trap])", "keys(trap)", "tojson(trap)", "round(trap)",
        "abs(trap)", "trap.upper()", "map([trap], attribute='x')", "range(trap)", "selectattr([trap], 'x')",
    ],
)  # fmt: skip
def test_nothing_of_a_foreign_object_is_ever_called_or_read(text: str) -> None:
    trap, other = Trap(), Trap()

    with pytest.raises(TemplateError):
        compile_expression(text).value({"trap": trap, "trap2": other})

    assert object.__getattribute__(trap, "touched") == []
    assert object.__getattribute__(other, "touched") == []


def test_a_foreign_object_can_be_handed_on() -> None:
    trap = Trap()

    assert compile_expression("[a.b][0]").value({"a": {"b": trap}}) is trap


def test_methods_that_a_derived_container_overrides_are_not_used() -> None:
    class Loud(dict[str, Any]):
        def _no(self, *args: Any) -> Any:
            raise AssertionError("an overridden method ran")

        __getitem__ = __contains__ = __iter__ = __len__ = __eq__ = keys = items = values = get = _no

    scope = {"d": Loud(a=1)}

    for text in (
        "d.a",
        "d == {'a': 1}",
        "len(d)",
        "'a' in d",
        "keys(d)",
        "str(d)",
        "items(d)",
        "not d",
        "d.get('a')",
    ):
        compile_expression(text).value(scope)


ATTACKS = [
    "'a' * 10000000000",
    "10000000000 * [0]",
    "[" + ", ".join(["[0]*1000000"] * 300) + "]",
    "[" + ", ".join(["'a'*1000000"] * 300) + "]",
    "'a' * 1000000 + 'a' * 1000000",
    "replace('a' * 1000000, 'a', 'b' * 1000)",
    "replace('a' * 1000, '', 'b' * 10000)",
    "join(['a' * 100000] * 1000000, 'b')",
    "join(split('a' * 100000, 'a'), 'b' * 100000)",
    "range(1000000000000)",
    "range(0, 10 * 1000000000000000000000000000, 1)",
    "sum(range(1000000)) + sum(range(1000000)) + sum(range(1000000))",
    " * ".join(["9" * 70] * 40),
    "str(" + "9" * 3900 + ")",
    "int('9' * 100000)",
    "indent('\\n' * 100000, 100)",
    "truncate('a', 10, false, 'b' * 1000000 + 'b' * 1000000)",
    "'" + "ß" * 1000 + "' * 1000 + upper('ß' * 999999)",
    "urlencode('ß' * 900000)",
    "fromjson('[' * 100000)",
    "fromjson('9' * 900000)",
    "tojson([[[['a' * 1000] * 1000] * 1000] * 1000])",
    "(" * 1900 + "1" + ")" * 1900,
    "[" * 1900 + "]" * 1900,
    "-" * 3990 + "1",
    "not " * 990 + "1",
    "a" + ".b" * 1900,
    "a" + "[0]" * 1300,
    "1 if 1 else " * 330 + "1",
    "{1:" * 1300 + "1" + "}" * 1300,
    "1" + "+1" * 1990,
    "len(" * 990 + "1" + ")" * 990,
    "lambda:" * 500 + "1",
]
HARMLESS = [
    "[[0] * 1000000] * 1000000",
    "split('a ' * 500000) + split('a ' * 500000)",
    "1e308 * 10 // 1e-308",
    "indent('a' * 100000, 100000)",
    "endless == [endless, 1]",
    "deep == [deep]",
    "contains(same, 'x')",
    "len(same) + len(long) + len(deep)",
    "deep[0][0] == one",
]
ATTACKS_BY_DATA = [
    "one == other",
    "one in [other]",
    "str(one)",
    "tojson(one)",
    "str(endless)",
    "tojson(endless)",
    "str(deep)",
    "str(number)",
    "number + 1",
    "number * number",
    "number % 7",
    "number < 1.5",
    "float(number)",
    "str([number])",
    "'a' * number",
    "[1][number]",
    "items[number]",
    "range(number)",
    "round(1.5, number)",
    "join(same)",
    "sorted(same)",
    "max(same)",
    "str(same)",
    "unique(same) == sorted(same)",
    "replace(long, 'a', 'bbb')",
    "long + long",
    "upper(long) + upper(long)",
]


@pytest.mark.parametrize(("attacks", "scope"), [(ATTACKS, "{}"), (ATTACKS_BY_DATA, "hostile")])
def test_what_is_hostile_is_refused_with_little_memory_and_little_time(
    attacks: list[str], scope: str
) -> None:
    found = outcomes("expression", attacks, scope)

    assert {
        text[:60]: outcome for text, outcome in zip(attacks, found, strict=True) if outcome != "refused"
    } == {}


def test_what_looks_hostile_but_is_small_needs_little_memory_and_little_time() -> None:
    assert {*outcomes("expression", HARMLESS, "hostile")} <= {"done", "refused"}


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(plain, plain)
def test_equality_is_that_of_python(one: Any, other: Any) -> None:
    scope = {"one": one, "other": other}

    def alike(left: Any, right: Any) -> bool:
        return bool(left == right)

    assert compile_expression("one == other").value(scope) is alike(one, other)
    assert compile_expression("one == one").value(scope) is True


@given(st.text(max_size=200))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    try:
        compile_expression(text).value(SCOPE)
    except TemplateError as error:
        assert 0 <= error.offset <= len(text)


WORDS = [
    "a",
    ".",
    "b",
    "(",
    ")",
    "[",
    "]",
    ",",
    "+",
    "-",
    "*",
    "/",
    "==",
    "<",
    "in",
    "not",
    "and",
    "or",
    "if",
]
WORDS += ["else", "'x'", "1", "{{", "}}", "len", "default", ":"]


@given(st.lists(st.sampled_from(WORDS)))
def test_any_sequence_of_words_is_an_expression_or_is_refused(words: list[str]) -> None:
    with contextlib.suppress(TemplateError):
        compile_expression(" ".join(words)).value({"a": {"b": [1]}, "b": "t"})

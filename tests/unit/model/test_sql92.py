"""SQL92 selectors: the whole table of what RocketMQ's own parser and evaluation say, and the limits."""

from __future__ import annotations

import itertools

import pytest

from skylark.model.message import encode_properties
from skylark.model.sql92 import (
    EXPRESSION_CHARS_MAX,
    NESTING_MAX,
    BadSelector,
    EvaluationError,
    Selector,
    compile_selector,
)
from skylark.model.sql92.nodes import depth
from skylark.model.sql92.parser import parse

T, F, N, E = "true", "false", "null", "error"
NONE: dict[str, str] = {}

# An expression; then properties and what it says of them.
TABLE: list[tuple[str, list[tuple[dict[str, str], str]]]] = [
    (
        "a = 5",
        [
            ({"a": "5"}, T),
            ({"a": "6"}, F),
            (NONE, N),
            ({"a": "abc"}, E),
            ({"a": "5.0"}, E),
            ({"a": " 5"}, E),
            ({"a": "+5"}, T),
            ({"a": "05"}, T),
            ({"a": "2147483648"}, E),
        ],
    ),
    ("a = 5.0", [({"a": "5"}, T), ({"a": " 5 "}, T), ({"a": "5f"}, T)]),
    ("a = '5'", [({"a": "05"}, F)]),
    ("a = 'x'", [({"a": "x"}, T), ({"a": "X"}, F)]),
    ("a = ''", [({"a": ""}, T)]),
    ("a = 'it''s'", [({"a": "it's"}, T)]),
    ("a = '中文'", [({"a": "中文"}, T)]),
    ("a <> 'x'", [({"a": "y"}, T), (NONE, N)]),
    ("a <> 5", [({"a": "5"}, F), ({"a": "abc"}, E)]),
    ("a > 3", [({"a": "4"}, T), ({"a": "3"}, F), ({"a": "3.5"}, E)]),
    ("a > 3.0", [({"a": "3.5"}, T)]),
    ("a >= 3", [({"a": "3"}, T)]),
    ("a < 3", [({"a": "2"}, T)]),
    ("a <= 3", [({"a": "4"}, F)]),
    ("3 < a", [({"a": "4"}, T)]),
    ("a > b", [({"a": "20", "b": "9"}, T), ({"a": "abc", "b": "1"}, E), ({"a": "10"}, N)]),
    (
        "a = b",
        [
            ({"a": "3.14", "b": "3.14"}, T),
            ({"a": "3.14", "b": "3.140"}, F),
            (NONE, T),
            ({"a": "1"}, F),
            ({"b": "1"}, N),
        ],
    ),
    ("a <> b", [({"a": "1"}, T)]),
    (
        "a BETWEEN 2 AND 10",
        [({"a": "2"}, T), ({"a": "10"}, T), ({"a": "11"}, F), (NONE, N), ({"a": "abc"}, E)],
    ),
    ("a BETWEEN 2 AND 2", [({"a": "2"}, T)]),
    ("a BETWEEN -10 AND -2", [({"a": "-5"}, T)]),
    ("a BETWEEN -2 AND -10", [({"a": "-5"}, F)]),
    ("a BETWEEN lo AND hi", [({"a": "5", "lo": "1", "hi": "9"}, T)]),
    ("a NOT BETWEEN 2 AND 10", [({"a": "1"}, T), ({"a": "2"}, F), (NONE, N)]),
    ("a NOT BETWEEN 10 AND 2", [({"a": "5"}, T)]),
    ("a IN ('1','2')", [({"a": "1"}, T), ({"a": "3"}, F), (NONE, N)]),
    ("a NOT IN ('1','2')", [({"a": "3"}, T), ({"a": "1"}, F), (NONE, N)]),
    ("a IN ('x','y','z','w','v')", [({"a": "v"}, T)]),
    ("(a) IN ('1')", [({"a": "1"}, T)]),
    ("a IS NULL", [(NONE, T), ({"a": "x"}, F)]),
    ("a IS NOT NULL", [({"a": "x"}, T), (NONE, F)]),
    ("a IS NULL OR a = 'h'", [(NONE, T)]),
    ("NULL IS NULL", [(NONE, T)]),
    ("a CONTAINS 'x'", [({"a": "axb"}, T), ({"a": "abb"}, F), (NONE, F)]),
    ("a CONTAINS ''", [({"a": "abc"}, F)]),
    ("a NOT CONTAINS ''", [({"a": "abc"}, F)]),
    ("a NOT CONTAINS 'x'", [({"a": "abb"}, T), (NONE, F)]),
    ("NOT (a CONTAINS 'x')", [(NONE, T)]),
    ("'axb' CONTAINS 'x'", [(NONE, T)]),
    ("a STARTSWITH 'ax'", [({"a": "axb"}, T)]),
    ("a NOT STARTSWITH 'ax'", [({"a": "axb"}, F)]),
    ("a startswith ''", [({"a": "axb"}, F)]),
    ("a ENDSWITH 'xb'", [({"a": "axb"}, T)]),
    ("a NOT ENDSWITH 'z'", [({"a": "axb"}, T)]),
    ("a = TRUE", [({"a": "true"}, T), ({"a": "TRUE"}, T), ({"a": "yes"}, F)]),
    ("a = FALSE", [({"a": "yes"}, T), (NONE, N)]),
    ("TRUE = a", [({"a": "true"}, E)]),
    ("TRUE = TRUE", [(NONE, T)]),
    ("1 = TRUE", [(NONE, F)]),
    ("'true' = TRUE", [(NONE, T)]),
    ("TRUE", [(NONE, T)]),
    ("FALSE", [(NONE, F)]),
    ("NULL", [(NONE, N)]),
    ("NOT TRUE", [(NONE, F)]),
    ("a", [({"a": "true"}, F), (NONE, N)]),
    ("NOT a", [({"a": "true"}, T), (NONE, N)]),
    ("a AND b", [({"a": "true", "b": "true"}, F)]),
    (
        "a = 1 AND b = 2",
        [({"a": "1", "b": "2"}, T), ({"a": "1"}, N), ({"a": "2"}, F), ({"a": "abc", "b": "2"}, E)],
    ),
    ("a = 1 OR b = 2", [({"b": "2"}, T), ({"a": "abc", "b": "2"}, E)]),
    ("b = 2 OR a = 1", [({"a": "abc", "b": "2"}, T)]),
    ("a = 1 OR b = 2 AND c = 3", [({"a": "1", "b": "9", "c": "9"}, T)]),
    ("(a = 1 OR b = 2) AND c = 3", [({"a": "1", "b": "9", "c": "9"}, F)]),
    ("NOT (a = 1)", [({"a": "2"}, T), (NONE, N)]),
    ("NOT a = 1", [({"a": "1"}, F), ({"a": "2"}, F)]),
    ("NOT a IS NULL", [(NONE, T), ({"a": "1"}, F)]),
    ("NOT NOT (a = 1)", [({"a": "1"}, T)]),
    ("a > -1", [({"a": "0"}, T)]),
    ("a > +1", [({"a": "2"}, T)]),
    ("a = -5", [({"a": "-5"}, T)]),
    ("-5 = a", [({"a": "-5"}, T)]),
    ("- 5 < a", [({"a": "1"}, T)]),
    ("-a < 5", [({"a": "1"}, N)]),
    ("a = 1 = TRUE", [({"a": "1"}, T)]),
    ("(a > 1) = TRUE", [({"a": "2"}, T)]),
    ("a > 1 IS NULL", [(NONE, T)]),
    ("1 = 1", [(NONE, T)]),
    ("1 = 1.0", [(NONE, T)]),
    ("1 > 2", [(NONE, F)]),
    ("'1' = 1", [(NONE, T)]),
    ("1 = '1'", [(NONE, T)]),
    ("'1' = '1.0'", [(NONE, F)]),
    ("1 = 'x'", [(NONE, E)]),
    ("a > .5", [({"a": "0.6"}, T)]),
    ("a > 5.", [({"a": "6"}, T)]),
    ("a = 1e1", [({"a": "10"}, T)]),
    ("a > 3.1E10", [({"a": "3.1415E10"}, T)]),
    ("a > 1.0", [({"a": "NaN"}, T)]),
    ("a = 2147483648", [({"a": "2147483648"}, T)]),
    ("a = 9223372036854775807", [({"a": "9223372036854775807"}, T)]),
    ("a = 10L", [({"a": "10"}, T)]),
    ("a = 0L", [({"a": "0"}, T)]),
    ("a = 007", [({"a": "0"}, T)]),
    ("a = 1 garbage", [({"a": "1"}, T)]),
    ("a = 1 b = 2", [({"a": "1"}, T)]),
    ("a = 1 )", [({"a": "1"}, T)]),
    ("a + 1 = 2", [({"a": "1"}, F)]),
    ("a LIKE 'x%'", [({"a": "1"}, F)]),
    ("a-b = 1", [(NONE, N)]),
    ("_a$1 = 'x'", [({"_a$1": "x"}, T)]),
    ("$x = 'y'", [({"$x": "y"}, T)]),
    ("TAGS = 'TagA'", [({"TAGS": "TagA"}, T)]),
    ("tags = 'TagA'", [({"TAGS": "TagA"}, N)]),
    ("a /* c */ = 1", [({"a": "1"}, T)]),
    ("a = 1 -- c", [({"a": "1"}, T)]),
    ("a = 1 -- c\n AND b = 2", [({"a": "1", "b": "3"}, F)]),
    ("a is not null and a between 0 and 3", [({"a": "1"}, T)]),
    ("a <= now", [({"a": "1"}, N), ({"a": "1", "now": "5"}, T)]),
    ("a >= 1 AND a <= 3 OR b CONTAINS 'z'", [({"b": "xyz"}, T)]),
]
ROWS = [(expression, properties, said) for expression, cases in TABLE for properties, said in cases]

# What is refused, and the character that the refusal names.
REFUSED = [
    ("a != 5", 3),
    ("a == 5", 4),
    ("a > 'x'", 3),
    ("a > TRUE", 3),
    ("a BETWEEN 10 AND 2", 3),
    ("a BETWEEN 'a' AND 'z'", 3),
    ("a BETWEEN 1 AND NULL", 3),
    ("a IN (1,2)", 7),
    ("a IN ()", 7),
    ("'a' IN ('a')", 5),
    ("a = NULL", 3),
    ("a IS TRUE", 6),
    ("a NOT NULL", 7),
    ("a CONTAINS b", 12),
    ("a CONTAINS 1", 12),
    ("TRUE = 1", 6),
    ("TRUE = 'true'", 6),
    ("NOT a > 5", 7),
    ("a > 1 > 0", 7),
    ("a = 0.0", 5),
    ("a > 1e400", 5),
    ("a = 9223372036854775808", 5),
    ("a = 1 #", 7),
    ("a = 1 ;", 7),
    ("(a = 1", 7),
    ("a = 'x' AND", 12),
    ("", 1),
    ("a * 2 = 2", 3),
    ("a NOT LIKE 'x'", 7),
    ("a.b = 1", 2),
    ('"a" = 1', 1),
    ('a = "x"', 5),
    ("a = 中", 5),
    ("a and between 2 and 10", 7),
    ("IN = 1", 1),
    ("a LIKE 'x' !", None),
    ("a = 1 AND !", 11),
    ("a = 'x", 5),
    ("5", 1),
    ("'x'", 1),
    ("NOT 5", 1),
    ("a = 1 OR 5", 7),
    ("5 AND a = 1", 3),
    ("a = 1 /* c", 7),
]


def said_of(selector: Selector, properties: dict[str, str]) -> str:
    try:
        truth = selector.evaluate(properties)
    except EvaluationError:
        return E
    return {True: T, False: F, None: N}[truth]


@pytest.mark.parametrize(("expression", "properties", "said"), ROWS)
def test_every_row_of_the_table(expression: str, properties: dict[str, str], said: str) -> None:
    selector = compile_selector(expression)
    assert said_of(selector, properties) == said
    assert selector.matches(properties) is (said == T)


@pytest.mark.parametrize(("expression", "properties", "said"), ROWS)
def test_the_text_of_a_record_gives_the_same(expression: str, properties: dict[str, str], said: str) -> None:
    if "" in properties.values():
        pytest.skip("a record cannot hold an empty value")
    text = encode_properties({"KEYS": "k1", **properties, "WAIT": "true"})
    assert compile_selector(expression).matches_text(text) is (said == T)


@pytest.mark.parametrize(("expression", "character"), REFUSED)
def test_every_refused_row_names_its_place(expression: str, character: int | None) -> None:
    if character is None:  # the tail is not read: only `a LIKE` is, and LIKE is a word
        assert compile_selector(expression).matches({"a": "x"}) is False
        return
    with pytest.raises(BadSelector) as raised:
        compile_selector(expression)
    assert raised.value.position + 1 == character, str(raised.value)
    assert str(raised.value).endswith(f"at character {character}")


def test_a_refusal_says_what_would_be_possible() -> None:
    with pytest.raises(BadSelector, match=r"unexpected 'NULL'; expected .*BETWEEN.*IN"):
        compile_selector("a NOT NULL")
    with pytest.raises(BadSelector, match=r"unexpected end; expected .*\), "):
        compile_selector("(a = 1")


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1.0), ("0x1.8p1", 3.0), ("0X.8P1d", 1.0), ("-Infinity", float("-inf")), ("1e999", float("inf")),
     ("0x1p99999", float("inf")), (".5e+1D", 5.0)],
)  # fmt: skip
def test_doubles_are_read_as_java_reads_them(text: str, number: float) -> None:
    selector = compile_selector("a = b")
    assert selector.evaluate({"a": text, "b": text}) is True
    assert compile_selector("a >= b AND a <= b").evaluate(
        {"a": text, "b": repr(number).replace("inf", "Infinity")}
    )


@pytest.mark.parametrize("text", ["", "1_0", "\u0661", "0x1", "nan", "inf", "1ff", "+-1", "1e", "0x1.8"])
def test_what_is_no_double_is_an_error(text: str) -> None:
    with pytest.raises(EvaluationError):
        compile_selector("a > 1.5").evaluate({"a": text})


def test_zeros_and_nan_have_java_s_order() -> None:
    larger = compile_selector("a > b")
    assert larger.evaluate({"a": "0.0", "b": "-0.0"}) is True
    assert larger.evaluate({"a": "NaN", "b": "Infinity"}) is True
    assert larger.evaluate({"a": "NaN", "b": "NaN"}) is False


def test_integers_keep_their_type_behind_a_minus() -> None:
    # The literal is a long before the minus, so the property is read as a long.
    assert compile_selector("a = -2147483648").evaluate({"a": "4294967296"}) is False
    with pytest.raises(EvaluationError):
        compile_selector("a = -2147483647").evaluate({"a": "4294967296"})


def test_long_numbers_cost_little() -> None:
    assert compile_selector("a = 5").evaluate({"a": "0" * 30_000 + "5"}) is True
    with pytest.raises(EvaluationError):
        compile_selector("a = 5").evaluate({"a": "9" * 30_000})


def test_the_size_of_an_expression_is_limited() -> None:
    long = "a = '" + "x" * (EXPRESSION_CHARS_MAX - 6) + "'"
    assert compile_selector(long).matches({"a": "x" * (EXPRESSION_CHARS_MAX - 6)})
    with pytest.raises(BadSelector, match=f"more than {EXPRESSION_CHARS_MAX} characters"):
        compile_selector(long + " ")


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 4000 + "a = 1" + ")" * 4000,
        "NOT " * 2000 + "a",
        "a = " + "-" * 4000 + "5",
        "a = 1" + " = TRUE" * 1000,
        "a" + " IS NULL" * 1000,
        "a = 1 <> TRUE" + " <> FALSE" * 800,
    ],
)
def test_the_depth_of_an_expression_is_limited(expression: str) -> None:
    with pytest.raises(BadSelector, match=f"more than {NESTING_MAX} levels of nesting"):
        compile_selector(expression)


@pytest.mark.parametrize(
    ("before", "after", "most"),
    [("(", ")", 97), ("NOT ", "", 99), ("", " IS NULL", 99), ("", " = TRUE", 99)],
)
def test_exactly_a_hundred_levels_are_allowed(before: str, after: str, most: int) -> None:
    assert (NESTING_MAX, EXPRESSION_CHARS_MAX) == (100, 8192)
    compile_selector(before * most + "a" + after * most)
    with pytest.raises(BadSelector, match="more than 100 levels of nesting"):
        compile_selector(before * (most + 1) + "a" + after * (most + 1))


def test_depth_is_that_of_the_deepest_operand() -> None:
    assert depth(parse("a")) == 1
    assert depth(parse("a IS NULL")) == 2
    assert depth(parse("b = 1 OR NOT (a = 1 AND c IS NULL)")) == 5
    assert depth(parse("a CONTAINS 'x'")) == 2


def test_the_largest_double_is_allowed_and_long_numbers_are_cut_in_errors() -> None:
    assert compile_selector("a = 1.7976931348623157e308").matches({"a": "1.7976931348623157e308"})
    with pytest.raises(BadSelector, match=r"^1234567890123456789\. exceeds the range"):
        compile_selector("a = 1234567890123456789.5e999")
    with pytest.raises(BadSelector, match=r"^99999999999999999999 does not fit into 64 bits"):
        compile_selector("a = " + "9" * 30)
    with pytest.raises(BadSelector, match=r"^unexpected 'xxxxxxxxxxxxxxxxxxxx';"):
        compile_selector("a = 1 AND (b = 2 " + "x" * 30)


def test_an_operand_that_is_no_condition_is_named_by_the_word_before_it() -> None:
    for expression, character in (("5 AND a AND b", 3), ("a AND 5 AND b", 3), ("a AND b AND 5", 9)):
        with pytest.raises(BadSelector, match=f"at character {character}$"):
            compile_selector(expression)


def test_long_expressions_that_are_not_deep_are_fine() -> None:
    many = " OR ".join(f"a = '{number}'" for number in range(500))
    assert compile_selector(many).matches({"a": "499"})
    assert compile_selector("(" * 45 + "a = 1" + ")" * 45).matches({"a": "1"})
    everyone = " AND ".join(f"p{number} IS NULL" for number in range(400))
    assert compile_selector(everyone).matches({})


def test_expressions_are_compiled_once() -> None:
    assert compile_selector("once = 1") is compile_selector("once = 1")
    for _ in range(2):
        with pytest.raises(BadSelector, match="at character 9"):
            compile_selector("twice = ")


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("(b = 'x') = (c = 'x')", True),  # both are unknown
        ("(b = 'x') = (a IS NULL)", None),
        ("(a IS NULL) = (b = 'x')", False),
        ("TRUE = a", False),
        ("1 < 1", False),
        ("1 <= 1", True),
        ("2 > 1", True),
        ("1 >= 2", False),
    ],
)
def test_what_is_unknown_or_constant_is_compared_as_java_does(expression: str, said: bool | None) -> None:
    assert compile_selector(expression).evaluate({}) is said


@pytest.mark.parametrize("word", ["AND", "OR"])
@pytest.mark.parametrize("values", list(itertools.product(("1", "2", None), repeat=3)))
def test_three_conditions_have_the_truth_of_sql(word: str, values: tuple[str | None, ...]) -> None:
    properties = {name: value for name, value in zip("abc", values, strict=True) if value is not None}
    truths = [None if value is None else value == "1" for value in values]
    decisive = word == "OR"
    expected = decisive if decisive in truths else None if None in truths else not decisive
    assert (
        compile_selector(f" {word} ".join(f"{name} = 1" for name in "abc")).evaluate(properties) is expected
    )

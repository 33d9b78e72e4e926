"""Tool calls: read from any text in any pieces, and enforced by grammars."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llguidance import LLMatcher

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.grammars.text import grammar_text
from draftloop.request import TextForm
from orchestrator.gateway.chat_reader import Reading
from orchestrator.gateway.formats import ChatFormat
from orchestrator.gateway.messages import Message, for_template
from orchestrator.gateway.tools.deepseek import DEEPSEEK
from orchestrator.gateway.tools.glm45 import GLM45
from orchestrator.gateway.tools.grammar import calls_grammar
from orchestrator.gateway.tools.hermes import HERMES
from orchestrator.gateway.tools.kimi_k2 import KIMI_K2
from orchestrator.gateway.tools.llama3_json import LLAMA3_JSON
from orchestrator.gateway.tools.minimax_m2 import MINIMAX_M2
from orchestrator.gateway.tools.mistral import MISTRAL
from orchestrator.gateway.tools.notation import Notation
from orchestrator.gateway.tools.notations import NOTATIONS, detect_notation
from orchestrator.gateway.tools.offer import Offer, make_offer, shown_tools
from orchestrator.gateway.tools.pythonic import PYTHONIC
from orchestrator.gateway.tools.qwen3_coder import QWEN3_CODER
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import (
    NO_PARAMETERS,
    ChosenFunction,
    ChosenTool,
    Function,
    Tool,
)
from orchestrator.text import TextStream
from tests.support.calls import (
    assert_read_equally_however_cut,
    is_allowed,
    matches_grammar,
    read_calls,
)
from tests.support.marks import chat_message, in_pieces, tokens_with
from tests.support.tool_answers import (
    ANSWERS,
    BETWEEN_TAGS,
    BRACES,
    FUNCTIONS,
    KNOWN,
    READ,
    WEATHER,
    answers,
)


def functions_named(*names: str) -> dict[str, Function]:
    """Functions with these names, which take any arguments."""
    return {name: Function(name=name, parameters={}) for name in names}


@pytest.mark.parametrize("notation", NOTATIONS.values(), ids=NOTATIONS)
@given(cuts=st.lists(st.integers(0, 1000)))
def test_calls_are_read_in_any_pieces(notation: Notation, cuts: list[int]) -> None:
    functions = KNOWN if notation in BETWEEN_TAGS else None
    assert read_calls(notation, in_pieces(ANSWERS[notation.name], cuts), functions) == (
        "",
        list(READ),
    )


@given(cuts=st.lists(st.integers(0, 1000)))
def test_text_before_and_after_calls_is_content(cuts: list[int]) -> None:
    text = f"Let me see.\n\n{ANSWERS['hermes']}\nDone "
    assert read_calls(HERMES, in_pieces(text, cuts)) == ("Let me see.\nDone", list(READ))


def test_empty_marks_between_calls_are_dropped() -> None:
    one, two = (f"<tool_call>\n{call}\n</tool_call>" for call in (WEATHER, BRACES))
    assert read_calls(HERMES, [f"{one}\n<tool_call></tool_call>\n{two}"]) == ("", list(READ))


def test_mark_after_a_call_is_content() -> None:
    one = WEATHER.replace("arguments", "parameters")
    assert read_calls(LLAMA3_JSON, [f"{one}<|python_tag|>x"]) == ("<|python_tag|>x", [READ[0]])


PIECES = ("<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[", "]", ",", ";", " ", "\n",
          "{", "}", '"name"', ":", '"a"', '"arguments"', "\\", '"', "x", "<|python_tag|>", "{}",
          WEATHER)  # fmt: skip


@pytest.mark.parametrize("notation", NOTATIONS.values(), ids=NOTATIONS)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), cuts=st.lists(st.integers(0, 400)))
@example(pieces=["<tool_call>", "\n", "{", "}", "\n", "</tool_call>"], cuts=[])
@example(pieces=["{", "x", "}"], cuts=[1])
@example(pieces=[" ", "[TOOL_CALLS]", " ", "x"], cuts=[3])
@example(pieces=['{"name": ""', ',"arguments":{}}'], cuts=[])
def test_any_text_is_output_completely_in_any_pieces(
    notation: Notation, pieces: list[str], cuts: list[int]
) -> None:
    """Without a call, the text is the content, unchanged."""
    assert_read_equally_however_cut(notation, pieces, cuts)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"arguments": {"a": [1, "é"]}, "name": "f"}', '{"a": [1, "é"]}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"type": "function", "name": "f", "parameters": {}}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"arguments": {"a": "}"}, "name": "f"}', '{"a": "}"}'),
        ('{"arguments": {"a": "\\ud83d"}, "name": "f"}', '{"a": "\ufffd"}'),  # a lone surrogate
    ],
)
def test_call_variants_are_read(written: str, arguments: str) -> None:
    answer, expected = f"<tool_call>{written}</tool_call>", ("", [("f", arguments)])
    assert read_calls(HERMES, [answer]) == read_calls(HERMES, list(answer)) == expected


@pytest.mark.parametrize("arguments", ["[1]", '"x"', '"[1]"', "7"])
def test_arguments_that_are_not_an_object_are_content(arguments: str) -> None:
    answer = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert read_calls(HERMES, [answer]) == read_calls(HERMES, list(answer)) == (answer, [])


@pytest.mark.parametrize("cuts", [[], [3], [12, 20]])
def test_json_answer_is_not_read_as_a_call(cuts: list[int]) -> None:
    """Where calls have no marks, an object is a call only if it names an offered function."""
    for answer in ('{"name": "John", "age": 3}', '{"name": "John", "parameters": {"a": 1}}'):
        reader = CallReader(LLAMA3_JSON, functions_named("weather"))
        parts = [*(reader.feed(piece) for piece in in_pieces(answer, cuts)), reader.finish()]
        assert "".join(part.content for part in parts) == answer and not reader.calls
    reader = CallReader(LLAMA3_JSON, functions_named("weather"))
    assert reader.feed(ANSWERS["llama3_json"]).calls[0].name == "weather" and reader.calls == 1


def test_rest_of_a_required_call_is_not_content() -> None:
    # With a required call, an answer that was cut off shows no part of it as content.
    answer = ANSWERS["hermes"]
    for end in range(len(answer) + 1):
        reader = CallReader(HERMES, functions_named("weather", "say"), required=True)
        assert reader.feed(answer[:end]).content + reader.finish().content == ""


@pytest.mark.parametrize("cuts", [[], [3, 9, 40, 41, 60]])
def test_calls_beyond_the_limit_are_dropped(cuts: list[int]) -> None:
    one = '<tool_call>\n{"name": "%s", "arguments": {"a": 1}}\n</tool_call>'
    text = one % "weather" + "\n" + one % "say"
    reader = CallReader(HERMES, functions_named("weather", "say"), max_calls=1)
    parts = [reader.feed(piece) for piece in in_pieces(text, cuts)] + [reader.finish()]
    calls = [call for part in parts for call in part.calls]
    assert {call.name for call in calls} - {""} == {"weather"} and reader.calls == 1
    assert "".join(call.arguments for call in calls) == '{"a": 1}'
    assert not "".join(part.content for part in parts)


def test_arguments_are_streamed() -> None:
    reader = CallReader(HERMES)
    assert reader.feed('Yes <tool_call>{"name": "f", "argu').content == "Yes"
    (first_part,) = reader.feed('ments": {"text": "one').calls
    assert (first_part.name, first_part.arguments) == ("f", '{"text": "one')
    (more,) = reader.feed(" two").calls
    assert (more.name, more.arguments) == ("", " two")


@pytest.mark.parametrize("name", ["a}b", 'a"{', "x" * 128, "é" * 128])
def test_function_names_of_any_letters(name: str) -> None:
    answer = f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {{"a": 1}}}}</tool_call>'
    assert (
        read_calls(HERMES, [answer])
        == read_calls(HERMES, list(answer))
        == ("", [(name, '{"a": 1}')])
    )


def test_unterminated_name_is_read_in_linear_time() -> None:
    """A model may loop there, and the event loop is shared: only a limited length is searched."""
    answer = '<tool_call>{"name": "' + "a" * 200_000
    assert read_calls(HERMES, in_pieces(answer, list(range(0, 200_000, 20)))) == (answer, [])
    long_call = '<tool_call>{"name": "' + "a" * 5000 + '", "arguments": {"a": 1}}</tool_call>'
    assert (
        read_calls(HERMES, [long_call])
        == read_calls(HERMES, list(long_call))
        == ("", [("a" * 5000, '{"a": 1}')])
    )


def test_truncated_answers_are_read() -> None:
    """The limit may come in the middle of a call: the arguments so far, or the plain text."""
    assert read_calls(HERMES, ['<tool_call>{"name": "f", "arguments": {"a']) == ("", [("f", '{"a')])
    assert read_calls(HERMES, ['a <tool_call>{"na']) == ('a <tool_call>{"na', [])
    assert read_calls(HERMES, [ANSWERS["hermes"][:-3]]) == ("", list(READ))
    second = '\n<tool_call>{"na'
    assert read_calls(HERMES, [f"<tool_call>{WEATHER}</tool_call>{second}"]) == (second, [READ[0]])


@pytest.mark.parametrize(("reason", "expected"), [("stop", "tool_calls"), ("length", "length")])
def test_finish_reason_is_tool_calls_after_calls(reason: str, expected: str) -> None:
    form = ChatFormat(Reading(offer=Offer(HERMES, {}, None, frozenset())))
    choice = form.whole(0, ANSWERS["hermes"], None, reason)
    assert choice["finish_reason"] == expected and choice["message"]["content"] is None
    names = [call["function"]["name"] for call in choice["message"]["tool_calls"]]
    assert names == ["weather", "say"]
    plain = form.whole(1, "No.", None, reason)
    assert plain["finish_reason"] == reason and "tool_calls" not in plain["message"]


def test_finish_reason_of_a_stream_covers_earlier_calls() -> None:
    # A stream's finish reason is `tool_calls` although its last piece holds no call.
    form = ChatFormat(Reading(offer=Offer(HERMES, {}, None, frozenset())))
    assert form.delta(0, ANSWERS["hermes"], None, None)["delta"]["tool_calls"]
    assert form.delta(0, "", None, "stop")["finish_reason"] == "tool_calls"


def test_call_ids_have_the_form_of_the_notation() -> None:
    # Some templates accept only ids of a certain form.
    for notation, form in (
        (HERMES, r"call_[0-9a-f]{24}"),
        (MISTRAL, r"[0-9a-f]{9}"),
        (KIMI_K2, r"functions\.(weather:0|say:1)"),
    ):
        reader = CallReader(notation)
        ids = [part.call_id for part in reader.feed(ANSWERS[notation.name]).calls if part.name]
        assert len(set(ids)) == 2 and all(re.fullmatch(form, call_id) for call_id in ids)


def test_text_before_calls_is_the_content() -> None:
    form = ChatFormat(Reading(offer=Offer(HERMES, {}, None, frozenset())))
    message = form.whole(0, f"Let me see.\n{ANSWERS['hermes']}", None, "stop")["message"]
    assert message["content"] == "Let me see." and len(message["tool_calls"]) == 2


@pytest.mark.parametrize(
    ("template", "notation"),
    [
        ('<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args>}', HERMES),
        ('Respond in the format {"name": function name, "parameters": dictionary', LLAMA3_JSON),
        ('{{- "[TOOL_CALLS] [" }}{{ tool_call.function|tojson }}', MISTRAL),
        ("<tool_call>\\n<function=example>\\n<parameter=a>", QWEN3_CODER),
        ("<function=example>{arguments}</function>", None),
        ("Respond in the format [func_name1(params_name1=params_value1)]", PYTHONIC),
        ("<tool_call>{function-name}\\n<arg_key>", GLM45),
        ("{% set begin = '<minimax:tool_call>' %}", MINIMAX_M2),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", MISTRAL),
        ("{{ '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' }}", DEEPSEEK),
        ("{{ '<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' }}", DEEPSEEK),
        ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>", KIMI_K2),
        ("{% for message in messages %}", None),
    ],
)
def test_templates_show_how_calls_are_written(template: str, notation: Notation | None) -> None:
    assert detect_notation(template) is notation


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize("notation", NOTATIONS.values(), ids=NOTATIONS)
def test_grammars_allow_only_valid_calls(notation: Notation, special: bool | None) -> None:
    """Marks may be letters, tokens with letters, or special tokens, which have none."""
    tokens = tokens_with(*notation.marks, special=special)
    functions = FUNCTIONS[:1] if notation is PYTHONIC else FUNCTIONS

    def is_valid(text: str, *, several: bool) -> bool:
        return is_allowed(notation, functions, text, several=several, tokens=tokens)

    one, two, bad = answers(notation)
    assert is_valid(one, several=False) and is_valid(one, several=True)
    assert is_valid(two, several=True) and is_valid(two, several=False) is (two == one)
    assert not is_valid(bad, several=True)


@pytest.mark.parametrize("special", [None, True])
@pytest.mark.parametrize("notation", NOTATIONS.values(), ids=NOTATIONS)
def test_grammar_allows_calls_or_the_response_format(
    notation: Notation, special: bool | None
) -> None:
    # With `auto` and a response format, the answer is a call, or fits the format.
    tokens = tokens_with(*notation.marks, special=special)
    tools = [Tool(type="function", function=FUNCTIONS[0])]
    form = Grammar("regex", "yes|no")
    offer = make_offer(notation, tools, "auto", tokens.tokenizer, parallel=True, form=form)
    one, _, bad = answers(notation)
    assert offer.grammar is not None and not offer.required
    for text, allowed in ((one, True), ("no", True), (bad, False), ("maybe", False)):
        assert matches_grammar(offer.grammar, text, tokens) is allowed


def test_grammar_allows_one_call_if_named_or_not_parallel() -> None:
    # A named tool, or parallel calls switched off, allows exactly one call.
    tokenizer = tokens_with().tokenizer
    tools = [Tool(type="function", function=function) for function in FUNCTIONS]
    named = ChosenTool(type="function", function=ChosenFunction(name="weather"))
    for choice, parallel, functions, several in (
        ("required", True, FUNCTIONS, True),
        ("required", False, FUNCTIONS, False),
        (named, True, FUNCTIONS[:1], False),
        (named, False, FUNCTIONS[:1], False),
    ):
        offer = make_offer(HERMES, tools, choice, tokenizer, parallel=parallel)  # type: ignore[arg-type]
        assert offer.grammar == calls_grammar(HERMES, functions, tokenizer, several=several)


def test_schemas_that_are_too_long_together_are_refused_before_they_are_read() -> None:
    tokenizer = tokens_with().tokenizer
    long = {"properties": {f"a{number}": {"type": "string"} for number in range(9000)}}
    tools = [Tool(type="function", function=Function(name=name, parameters=long)) for name in "ab"]
    with pytest.raises(InvalidInput, match="^tools: must have parameters of at most 262144 char"):
        make_offer(HERMES, tools, "required", tokenizer, parallel=True)


def test_empty_schema_allows_any_object_and_none_an_empty_one() -> None:
    # An empty schema allows any object; without a schema, only an empty object is allowed.
    _, tokenizer, vocabulary = tokens_with()
    for parameters, arguments, allowed in (
        ({}, '{"a": 1}', True), ({}, "5", False), (None, '{"a": 1}', False), (None, "{}", True)
    ):  # fmt: skip
        text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        function = Function(name="f", parameters=parameters)
        grammar = calls_grammar(HERMES, [function], tokenizer, several=False)
        matcher = LLMatcher(vocabulary.tokenizer, grammar_text(grammar))
        assert (matcher.validate_tokens(token_ids) == len(token_ids)) is allowed


def test_templates_receive_tool_parameters() -> None:
    tools = [Tool(type="function", function=Function(name="f"))]
    shown = shown_tools(tools, "auto")
    assert shown is not None and shown[0]["function"]["parameters"] == NO_PARAMETERS
    assert shown_tools(tools, "none") is None and shown_tools([], None) is None


def test_special_marks_are_named_in_the_stream_when_tools_are_offered() -> None:
    # Special tokens have no text, so the text stream must be told to keep those that mark calls.
    tokenizer = tokens_with("<tool_call>", "</tool_call>", special=True).tokenizer
    tools = [Tool(type="function", function=FUNCTIONS[0])]
    marked = make_offer(HERMES, tools, "auto", tokenizer, parallel=True)
    assert marked.grammar is None and len(marked.named_tokens) == 2
    unmarked = tokens_with("<tool_call>", "</tool_call>", special=False).tokenizer
    assert not make_offer(HERMES, tools, "auto", unmarked, parallel=True).named_tokens
    token_ids = tokenizer.encode("é" + ANSWERS["hermes"], add_special_tokens=False)
    for named, calls in ((marked.named_tokens, ("é", list(READ))), (frozenset(), None)):
        stream = TextStream(tokenizer, [], (), TextForm(named_tokens=named))
        texts = [*(stream.push([token]) for token in token_ids), stream.finish()]
        assert (read_calls(HERMES, texts) == calls) if calls else "tool_call" not in "".join(texts)


def function_call(arguments: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_templates_receive_the_function_name_of_a_tool_result() -> None:
    # A tool message holds no name; templates get that of its call.
    result = chat_message(role="tool", content="5", tool_call_id="1")
    unknown = chat_message(role="tool", content="5", tool_call_id="2")
    plain = for_template([chat_message(tool_calls=[function_call("{}")]), result, unknown])
    assert plain[1]["name"] == "f" and "name" not in plain[2]


def test_templates_receive_parsed_arguments() -> None:
    # Templates get arguments as objects, not as JSON text; text that was cut stays text.
    (plain,) = for_template([chat_message(content=None, tool_calls=[function_call('{"a": [1]}')])])
    assert plain["content"] == ""
    assert plain["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": [1]}}
    for arguments in ('{"city": "Be', "[1]"):  # the output limit may have cut them
        (plain,) = for_template([chat_message(tool_calls=[function_call(arguments)])])
        assert plain["tool_calls"][0]["function"]["arguments"] == arguments
    (empty,) = for_template([chat_message(tool_calls=[function_call("")])])
    assert empty["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (
            chat_message(tool_calls=[function_call('{"a": "\\ud83d"}')]),
            "tool_calls[0].function.arguments",
        ),
        (chat_message(role="user", content="", tool_calls=[function_call("{}")]), "tool_calls"),
        (chat_message(role="tool", content="x"), "tool_call_id"),
        (chat_message(content="x", tool_call_id="1"), "tool_call_id"),
    ],
)
def test_invalid_messages_are_refused(message: Message, field: str) -> None:
    # The error names the message and the field.
    with pytest.raises(InvalidInput) as caught:
        for_template([chat_message(role="user", content="x"), message])
    assert caught.value.field == f"messages[1].{field}"

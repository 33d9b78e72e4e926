"""The tokens that a grammar allows, against all texts of a small language."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from draftloop.config import bundled_model
from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.grammars.text import grammar_text, without_annotations
from draftloop.request import SamplingParameters
from draftloop.runtime import grammars
from draftloop.runtime.grammars import Follower, Grammars
from draftloop.runtime.sampling import Sampler
from tests.support.sentencepiece import save_sentencepiece_tokenizer
from tests.support.toy_model import VOCABULARY_SIZE, save_tokenizer

END = 0
LETTERS = {letter: ord(letter) - 32 for letter in "abc"}  # tokens of the toy vocabulary


@pytest.fixture(scope="module")
def grammar_cache(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Grammars(folder, VOCABULARY_SIZE, [END])


def allowed_tokens(follower: Follower, *paths: str) -> list[set[int]]:
    """The tokens allowed after each path."""
    logits = torch.zeros(len(paths), VOCABULARY_SIZE)
    kept = follower.applied(logits, [[LETTERS[letter] for letter in path] for path in paths])
    return [set(row.isfinite().nonzero().flatten().tolist()) for row in kept]


def expected_tokens(language: list[str], text: str) -> set[int]:
    """What some text of the language continues with, and the end if this is a text of it."""
    longer = [
        word[len(text)] for word in language if word.startswith(text) and len(word) > len(text)
    ]
    return {LETTERS[letter] for letter in longer} | ({END} if text in language else set())


LANGUAGES = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=6, unique=True)


@given(LANGUAGES, st.text("abc", max_size=2), st.lists(st.text("abc", max_size=3), max_size=6))
def test_allowed_tokens_match_the_language(
    grammar_cache: Grammars, language: list[str], output: str, paths: list[str]
) -> None:
    """After an output and every path of a tree; after impossible paths all is allowed."""
    if not any(text.startswith(output) for text in language):
        return
    follower = grammar_cache.follow(Grammar("choice", json.dumps(language)))
    follower.observe([LETTERS[letter] for letter in output])
    for path, allowed in zip(paths, allowed_tokens(follower, *paths), strict=True):
        expected = expected_tokens(language, output + path)
        assert allowed == (expected or set(range(VOCABULARY_SIZE)))


def test_only_the_end_token_follows_the_end(grammar_cache: Grammars) -> None:
    follower = grammar_cache.follow(Grammar("regex", "ab"))
    follower.observe([LETTERS["a"], LETTERS["b"]])
    assert allowed_tokens(follower, "") == [{END}]
    assert follower.allows(END) and not follower.allows(LETTERS["a"])
    follower.observe([END])  # as in a session that is reopened
    assert allowed_tokens(follower, "") == [{END}]


def test_output_outside_the_grammar_is_refused(grammar_cache: Grammars) -> None:
    """A direct client of the service may open such a session; the orchestrator does not."""
    with pytest.raises(InvalidInput, match="grammar.regex: must be a grammar that can be followed"):
        grammar_cache.follow(Grammar("regex", "ab")).observe([LETTERS["c"]])


def test_sessions_with_one_grammar_have_separate_state(
    grammar_cache: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each session has its own state, even if another grammar was used in between."""
    monkeypatch.setattr(grammars, "MAX_CACHED", 1)
    first = grammar_cache.follow(Grammar("regex", "abc"))
    first.observe([LETTERS["a"]])
    grammar_cache.follow(Grammar("regex", "c"))
    second = grammar_cache.follow(Grammar("regex", "abc"))
    assert allowed_tokens(first, "") == [{LETTERS["b"]}]
    assert allowed_tokens(second, "", "ab") == [{LETTERS["a"]}, {LETTERS["c"]}]


def test_filters_apply_after_the_grammar(grammar_cache: Grammars) -> None:
    """The likeliest token is excluded before top-k keeps one."""
    follower = grammar_cache.follow(Grammar("regex", "[ab]"))
    parameters = SamplingParameters(temperature=1.0, top_k=1)
    sampler = Sampler(parameters, VOCABULARY_SIZE, torch.device("cpu"), follower)
    logits = torch.zeros(1, VOCABULARY_SIZE)
    logits[0, LETTERS["c"]], logits[0, LETTERS["b"]] = 5.0, 1.0
    assert sampler.choose(logits, [7], [[]]) == [LETTERS["b"]]
    assert not sampler.is_plain


def test_filters_count_only_tokens_the_grammar_allows(grammar_cache: Grammars) -> None:
    """Even if the token chosen without the grammar fits it, the filter must count anew."""
    follower = grammar_cache.follow(Grammar("regex", "[ab]"))
    parameters = SamplingParameters(temperature=1.0, top_k=2)
    sampler = Sampler(parameters, VOCABULARY_SIZE, torch.device("cpu"), follower)
    logits = torch.zeros(1, VOCABULARY_SIZE)
    logits[0, [LETTERS[letter] for letter in "cab"]] = torch.tensor([5.2, 5.0, 4.8])
    chosen = [sampler.choose(logits, [place], [[]])[0] for place in range(200)]
    assert chosen == [int(sampler.scores(logits, [place], [[]]).argmax()) for place in range(200)]
    assert set(chosen) == {LETTERS["a"], LETTERS["b"]}


def test_regex_may_end_in_an_escaped_backslash() -> None:
    Grammar("regex", r"a\\\\").validate()
    with pytest.raises(InvalidInput, match="must not end in a single backslash"):
        Grammar("regex", "a\\\\\\").validate()


@pytest.mark.parametrize("name", ["path", "password", "markdown"])
def test_unknown_formats_are_ignored(name: str) -> None:
    """But a property that only has that name is left alone."""
    schema = {"type": "object", "properties": {
        "format": {"type": "string", "format": name}, "x": {"enum": [{"format": name}]},
        "day": {"type": "string", "format": "date"}}}  # fmt: skip
    expected = {"type": "object", "properties": {
        "format": {"type": "string"}, "x": {"enum": [{"format": name}]},
        "day": {"type": "string", "format": "date"}}}  # fmt: skip
    read = grammar_text(Grammar("json_schema", json.dumps(schema)))
    assert read == grammar_text(Grammar("json_schema", json.dumps(expected)))


@pytest.mark.parametrize("keyword", ["default", "enum", "format"])
def test_property_names_are_not_read_as_keywords(keyword: str) -> None:
    schema = {"type": "object", "properties": {keyword: {"type": "string", "format": "color"}}}
    expected = {"type": "object", "properties": {keyword: {"type": "string"}}}
    assert without_annotations(schema) == expected


def test_too_deeply_nested_schema_is_refused() -> None:
    deep = '{"type":"object","properties":{"a":' * 900 + "{}" + "}}" * 900
    with pytest.raises(InvalidInput, match="nested too deep"):
        grammar_text(Grammar("json_schema", deep))


def test_schema_true_is_accepted() -> None:
    Grammar("json_schema", "true").validate()


def test_penalties_follow_the_path_under_a_grammar(grammar_cache: Grammars) -> None:
    follower = grammar_cache.follow(Grammar("regex", "[ab]{2}"))
    parameters = SamplingParameters(presence_penalty=0.5)
    sampler = Sampler(parameters, VOCABULARY_SIZE, torch.device("cpu"), follower)
    logits = torch.zeros(2, VOCABULARY_SIZE)
    logits[:, [LETTERS[letter] for letter in "cab"]] = torch.tensor([5.0, 1.0, 0.9])
    chosen = sampler.choose(logits, [7, 8], [[], [LETTERS["a"]]])
    assert chosen == [LETTERS["a"], LETTERS["b"]]


@pytest.mark.parametrize("top_k", [0, 3])
def test_tree_verification_under_a_grammar_matches_plain_decoding(
    grammar_cache: Grammars, top_k: int
) -> None:
    """One forward pass over a tree gives the tokens of token-by-token decoding, with any filter."""
    parameters = SamplingParameters(temperature=1.0, top_k=top_k, seed=3)

    def sampler() -> Sampler:
        follower = grammar_cache.follow(Grammar("regex", "[ab]{3}"))
        return Sampler(parameters, VOCABULARY_SIZE, torch.device("cpu"), follower)

    letters = [LETTERS[letter] for letter in "abc"]
    paths = [list(path) for depth in range(3) for path in itertools.product(letters, repeat=depth)]
    logits = torch.full((len(paths), VOCABULARY_SIZE), -9.0)
    logits[:, letters] = torch.tensor([1.0, 1.2, 9.0])
    for start in range(20):
        chosen = sampler().choose(logits, [start + len(path) for path in paths], paths)
        text: list[int] = []
        plain_sampler = sampler()
        for _ in range(3):
            row = paths.index(text)
            (token,) = plain_sampler.choose(logits[row : row + 1], [start + len(text)], [[]])
            assert chosen[row] == token in letters[:2]
            plain_sampler.observe_output([token])
            text.append(token)


def test_long_list_of_choices_is_accepted(grammar_cache: Grammars) -> None:
    names = [f"{number:04d}" for number in range(3000)]
    (first,) = allowed_tokens(grammar_cache.follow(Grammar("choice", json.dumps(names))), "")
    assert first == {ord(digit) - 32 for digit in "012"}


def test_too_large_grammar_is_refused_before_a_session_opens(grammar_cache: Grammars) -> None:
    """A grammar that is too large is refused before a session is opened."""
    rules = " | ".join(f'"{number:04d}"' for number in range(3000))
    with pytest.raises(InvalidInput, match="grammar.grammar: .*max is 2000"):
        grammar_cache.follow(Grammar("grammar", f"start: {rules}"))


def test_grammar_with_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    """Words begin with a mark instead of a space, and what is in no word comes as bytes."""
    save_sentencepiece_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = [tokenizer.id_to_token(token) for token in range(tokenizer.get_vocab_size())]
    followed = Grammars(tmp_path, len(texts), [texts.index("</s>")]).follow(Grammar("regex", " .*"))
    (kept,) = followed.applied(torch.zeros(1, len(texts)), [[]]).isfinite()
    allowed = {texts[token] for token in kept.nonzero().flatten().tolist()}
    assert allowed and all(text.startswith("\u2581") or text == "<0x20>" for text in allowed)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", ["<mark>", "[MARK]"])
@pytest.mark.parametrize("form", [{"json_schema": '{"const": "a NAME b"}'}, {"regex": '"a NAME b"'},
                                  {"choice": '["\\"a NAME b\\""]'}])  # fmt: skip
def test_required_text_may_contain_a_token_name(
    tmp_path: Path, form: dict[str, str], name: str, special: bool
) -> None:
    """The tokenizer makes that token of the text; a special token would have no letters."""
    tokenizer = Tokenizer.from_file(str(bundled_model("verifier") / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(name, special=special, normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ((kind, text),) = form.items()
    escaped_name = re.escape(name) if kind == "regex" else name
    grammar_cache = Grammars(tmp_path, 4097, [END])
    follower = grammar_cache.follow(Grammar(kind, text.replace("NAME", escaped_name)))  # type: ignore[arg-type]
    output: list[int] = []
    while END not in output:
        (row,) = follower.applied(torch.zeros(1, 4097), [[]])
        output.append(int(row.argmax()))
        follower.observe(output[-1:])
    assert tokenizer.decode(output[:-1], skip_special_tokens=True) == f'"a {name} b"'


@pytest.mark.parametrize("top_k", [0, 4096])
def test_a_text_that_must_come_is_spelled_in_one_way(top_k: int) -> None:
    """Else what a filter that keeps everything, or a draft model, says of a token would differ."""
    folder = bundled_model("verifier")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    first, letter, whole = (tokenizer.encode(text).ids[0] for text in ("f", "o", "oo"))
    follower = Grammars(folder, 4096, [END]).follow(Grammar("regex", "foo"))
    follower.observe([first])
    assert follower.allows(whole) and not follower.allows(letter)
    parameters = SamplingParameters(temperature=1.0, top_k=top_k)
    sampler = Sampler(parameters, 4096, torch.device("cpu"), follower)
    logits = torch.zeros(1, 4096)
    logits[0, letter] = 50.0
    assert sampler.choose(logits, [7], [[]]) == [whole]
    assert int(sampler.scores(logits, [7], [[]]).argmax()) == whole


def test_grammar_with_a_tokenizer_that_adds_a_prefix_space(tmp_path: Path) -> None:
    """The required text is the middle of an output, with its own tokens."""
    tokenizer = Tokenizer.from_file(str(bundled_model("verifier") / "tokenizer.json"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), byte_level])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    follower = Grammars(tmp_path, 4096, [END]).follow(Grammar("choice", '["return main"]'))
    output: list[int] = []
    while not follower.allows(END):
        (row,) = follower.applied(torch.zeros(1, 4096), [[]])
        output.append(int(row.argmax()))
        follower.observe(output[-1:])
    assert tokenizer.decode(output) == "return main"


def test_white_space_in_json_is_bounded() -> None:
    """An older llguidance allowed line ends without limit."""
    folder = bundled_model("verifier")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    follower = Grammars(folder, 4096, [END]).follow(Grammar("json_schema", '{"type": "object"}'))
    follower.observe(tokenizer.encode("{\n").ids)
    (line_end,) = tokenizer.encode("\n").ids
    assert follower.allows(line_end)
    follower.observe([line_end])
    assert not follower.allows(line_end)


def test_tokenizer_without_token_bytes_is_refused(tmp_path: Path) -> None:
    words = models.WordLevel({"a": 0, "b": 1}, unk_token="a")
    Tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InvalidInput, match="cannot be followed with this model's tokenizer"):
        Grammars(tmp_path, 2, [1]).follow(Grammar("regex", "a"))


def test_model_without_stop_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="needs a model with a token that ends a text"):
        Grammars(tmp_path, VOCABULARY_SIZE, []).follow(Grammar("regex", "a"))

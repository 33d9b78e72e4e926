"""The limits stated in the protos' comments are those of the code.

Clients may read nothing else.
"""

from __future__ import annotations

import re

import pytest

from draftloop import bans, grammar, request, speculation, tree
from draftloop.config import MAX_MESSAGE_BYTES
from draftloop.logprobs import MAX_TOP_LOGPROBS
from draftloop.model_info import PROTOCOL_VERSION
from draftloop.rpc import interceptors
from tests.contract.repository import ROOT

WINDOW, TOKENS = speculation.MAX_WINDOW_NODES, speculation.MAX_CASCADE_TOKENS
STATED = [
    ("generation", f"Up to {request.MAX_STOP_TEXTS} of 1 to {request.MAX_STOP_LETTERS} characters"),
    ("generation", f"up to {request.MAX_ID_LETTERS} printable ASCII characters"),
    ("generation", f"Up to {request.MAX_TENANT_LETTERS} printable characters"),
    ("generation", f"Up to {request.MAX_SALT_LETTERS} characters"),
    ("generation", f"Up to {bans.MAX_BAD_WORDS} of 1 to {bans.MAX_BAD_WORD_LETTERS} characters"),
    ("generation", f"characters and {bans.MAX_BAD_WORD_TOKENS} tokens"),
    ("generation", f"of so many likeliest tokens beside it, 0 to {MAX_TOP_LOGPROBS}."),
    ("generation", f"of so many likeliest tokens beside each, 0 to {MAX_TOP_LOGPROBS}."),
    ("verifier", f"of so many likeliest tokens beside it, 0 to {MAX_TOP_LOGPROBS}."),
    ("verifier", f"of so many likeliest tokens beside each, 0 to {MAX_TOP_LOGPROBS}."),
    ("verifier", f"successors of every node the verdicts carry, up to {tree.MAX_SUCCESSORS};"),
    ("speculation", f"{MAX_MESSAGE_BYTES >> 20} MiB where nothing else is set"),
    ("speculation", f'ErrorInfo of domain "{interceptors.DOMAIN}"'),
    ("speculation", f"Version of this protocol, which is {PROTOCOL_VERSION};"),
    ("speculation", f"by 1 to {grammar.MAX_LETTERS} characters"),
    ("speculation", f"as is anything up to {request.GREEDY_TEMPERATURE:.5f};"),
    ("speculation", f"up to 2^{request.MAX_TOP_K.bit_length()} - 1; 0 keeps all"),
    ("speculation", f"must fit in a draft; else in {WINDOW}."),
    ("speculation", f"lengthen one draft (K), 1 to {speculation.MAX_LENGTHENING_PHRASES}."),
    ("speculation", f"Most layers, 1 to {speculation.MAX_TREE_DEPTH}."),
    ("speculation", f"in every row a sum of 1 to {TOKENS}."),
    ("speculation", f"1 to {TOKENS}. The target's review is always exact."),
]


@pytest.mark.parametrize(("name", "statement"), STATED)
def test_limits_in_comments_match_the_code(name: str, statement: str) -> None:
    comments = re.sub(r"\s*//\s*|\s+", " ", (ROOT / "protos" / f"{name}.proto").read_text())
    assert statement in comments

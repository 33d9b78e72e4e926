"""Output of the command line: text coloured by source, figures, models."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from draftloop.completion import DeploymentInfo, Piece, Summary
from draftloop.cost_line import cost_line
from draftloop.model_info import ModelInfo
from draftloop.phrase_store_info import PhraseStoreInfo
from draftloop.tree import SOURCE_NAMES, TokenSource

STYLES = {
    TokenSource.TARGET: "",
    TokenSource.DRAFT_MODEL: "green",
    TokenSource.PROMPT_LOOKUP: "cyan",
    TokenSource.PHRASE: "magenta",
    TokenSource.LOOKAHEAD: "yellow",
    TokenSource.RECYCLED: "blue",
}


class TextPrinter:
    """Prints a stream's text as it comes, each token in the colour of its source.

    Tokens and characters do not map one to one, so a piece's text is split into equal shares, one
    per token in order: the edges of the colours are not exact.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.seen: set[TokenSource] = set()

    def show(self, piece: Piece) -> None:
        """Prints one piece."""
        self.seen.update(piece.sources)
        if not self._console.is_terminal:
            write_unchanged(self._console, piece.text)
            return
        for part, source in split_by_source(piece):
            self._console.print(Text(part, style=STYLES[source]), end="", soft_wrap=True)

    def legend(self, console: Console) -> None:
        """Prints the meaning of the colours used; `console` may differ from the text's."""
        parts = [f"[{STYLES[s] or 'default'}]{SOURCE_NAMES[s]}[/]" for s in sorted(self.seen)]
        console.print(f"[dim]tokens from:[/] {', '.join(parts)}")


def write_unchanged(console: Console, text: str) -> None:
    """Writes text unchanged, with tabs and carriage returns: it may go into a file or a pipe."""
    console.file.write(text)
    console.file.flush()


def split_by_source(piece: Piece) -> list[tuple[str, TokenSource]]:
    """The piece's text in equal parts, one per token, each with its token's source."""
    if not piece.sources:
        return [(piece.text, TokenSource.TARGET)] if piece.text else []
    runs: list[tuple[str, TokenSource]] = []
    count = len(piece.sources)
    for index, source in enumerate(piece.sources):
        start, stop = (len(piece.text) * at // count for at in (index, index + 1))
        if start < stop:
            runs.append((piece.text[start:stop], source))
    return runs


def show_summary(console: Console, summary: Summary) -> None:
    """One line of figures."""
    figures = summary.figures
    console.print(
        f"[dim]{figures.strategy}: {summary.usage.completion_tokens} tokens in "
        f"{summary.timings.decode_ns / 1e9:.2f} s, [/]"
        f"[bold]{summary.tokens_per_second:.1f} tokens/s[/]"
        f"[dim], {figures.tokens_per_round:.2f} tokens per round, "
        f"{figures.accepted_tokens} of {figures.draft_tokens} drafted tokens accepted, "
        f"seed {summary.seed}, ended by {summary.finish_reason}[/]",
        soft_wrap=True,
    )


def show_comparison(console: Console, plain: Summary, other: Summary, identical: bool) -> None:
    """Both runs side by side."""
    table = Table(title="the same tokens, two ways")
    table.add_column("strategy")
    for name in ("tokens/s", "ratio", "tokens per round", "first token"):
        table.add_column(name, justify="right")
    for summary in (plain, other):
        speed, base = summary.tokens_per_second, plain.tokens_per_second
        table.add_row(
            summary.figures.strategy,
            f"{speed:.1f}",
            f"{speed / base:.2f}x" if base else "",
            f"{summary.figures.tokens_per_round:.2f}",
            f"{summary.timings.time_to_first_token_ns / 1e6:.0f} ms",
        )
    console.print(table)
    verdict = "[green]identical tokens[/]" if identical else "[red]the tokens differ[/]"
    console.print(verdict)


def show_info(console: Console, info: DeploymentInfo) -> None:
    """The deployment as a table."""
    table = Table(title=f"draftloop {info.version}", show_header=True)
    table.add_column("")
    models: Sequence[ModelInfo | None] = (info.verifier, info.drafter)
    table.add_column("verifier")
    table.add_column("drafter")
    for label, describe in ROWS.items():
        table.add_row(label, *(escape(describe(model)) if model else "-" for model in models))
    console.print(table)
    console.print(
        f"strategies: {', '.join(info.strategies)} (default {info.default_strategy}); "
        f"{info.default_max_tokens} tokens unless told otherwise"
    )
    console.print(_phrases(info.phrases))


def _phrases(store: PhraseStoreInfo | None) -> str:
    if store is None:
        return "phrases: none"
    return (
        f"phrases: {store.kind}, {_connection(store)}; {store.records_read:,} records read; "
        f"{store.namespaces} of at most {store.most_namespaces} namespaces with {store.entries:,} "
        f"entries in {_mib(store.bytes)}, at most {_mib(store.most_namespace_bytes)} each"
    )


def _connection(store: PhraseStoreInfo) -> str:
    if store.kind == "memory":
        return "of this process alone"
    if not store.namespaces:
        return "not used yet"
    if store.unreachable_namespaces:
        return f"not connected for {store.unreachable_namespaces} of its namespaces"
    replaying = f", {store.replaying_namespaces} namespaces not read yet"
    return "connected" + (replaying if store.replaying_namespaces else "")


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _curve(model: ModelInfo) -> str:
    line = cost_line(model.cost_curve)
    pairs = zip(line.rows, line.times, strict=True)
    return "  ".join(f"{rows}: {time / 1e6:.1f}" for rows, time in pairs)


ROWS = {
    "model": lambda model: model.model_name,
    "parameters": lambda model: (
        f"{model.parameters / 1e6:.1f}M"
        + (f" (cost-inflated to {model.cost_inflation})" if model.cost_inflation else "")
    ),
    "format, device": lambda model: f"{model.format}, {model.place}",
    "context": lambda model: f"{model.context_length} tokens",
    "vocabulary": lambda model: f"{model.vocabulary_size} ({model.vocabulary_fingerprint})",
    "sessions": lambda model: f"at most {model.max_sessions}",
    "draft nodes": lambda model: f"at most {model.max_draft_nodes}",
    "forward, ms by tokens": _curve,
}

"""Cost curves as an SVG, written by hand: the orchestrator needs no plotting library for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from itertools import groupby

from draftloop.model_info import CostPoint, ModelInfo

WIDTH, HEIGHT = 460, 320
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 50, 50
COLOURS = ("#1b7f5c", "#3b6fb6", "#b5651d", "#8a5fa8", "#8a8f98", "#b03a5b")
GREY = "#444444"
TICKS = 4


def draw(models: Mapping[str, ModelInfo]) -> str:
    """One panel per role: milliseconds of a forward over its new tokens, a line per context."""
    panels = [
        f'<g transform="translate({WIDTH * at},0)">{_panel(role, model)}</g>'
        for at, (role, model) in enumerate(models.items())
    ]
    width = WIDTH * len(panels)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
        f'viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="11">'
    )
    background = f'<rect width="{width}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([head, background, *panels, "</svg>\n"])


def _panel(role: str, model: ModelInfo) -> str:
    curve = model.cost_curve
    parts = [_text(WIDTH / 2, 20, f"{role}: {model.model_name}, {model.device}", "middle")]
    if not curve:
        return parts[0] + _text(WIDTH / 2, HEIGHT / 2, "nothing was measured", "middle")
    frame = _Frame(
        max(point.tokens for point in curve), max(max(point.forward_ns for point in curve), 1) / 1e6
    )
    parts.append(frame.axes(sorted({point.tokens for point in curve})))
    lines = groupby(curve, key=lambda point: (point.context, point.batch))
    for index, ((context, batch), points) in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        parts.append(frame.line(list(points), colour))
        sessions = "1 session" if batch == 1 else f"{batch} sessions"
        name = f"{sessions}, each holding {context} tokens"
        parts.append(_text(LEFT + 12, TOP + 6 + 14 * index, name, "start", colour))
    return "".join(parts)


class _Frame:
    """Where tokens (logarithmic) and milliseconds (from 0) lie in a panel."""

    def __init__(self, max_tokens: int, max_ms: float) -> None:
        self._doublings = max(math.log2(max_tokens), 1.0)
        self._max_ms = max_ms

    def x(self, tokens: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(max(tokens, 1)) / self._doublings

    def y(self, ms: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ms / self._max_ms

    def axes(self, tokens: list[int]) -> str:
        floor = self.y(0)
        parts = [
            f'<path d="M{LEFT},{TOP}V{floor:.1f}H{WIDTH - RIGHT}" fill="none" stroke="{GREY}"/>',
            _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "new tokens of each session", "middle"),
            _text(LEFT - 8, TOP - 8, "ms", "end"),
        ]
        parts += [_text(self.x(count), floor + 16, str(count), "middle") for count in tokens]
        for tick in range(TICKS + 1):
            ms = self._max_ms * tick / TICKS
            parts.append(_text(LEFT - 8, self.y(ms) + 4, f"{ms:.3g}", "end"))
        return "".join(parts)

    def line(self, points: list[CostPoint], colour: str) -> str:
        places = [(self.x(point.tokens), self.y(point.forward_ns / 1e6)) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places)
        return f'<polyline points="{path}" fill="none" stroke="{colour}"/>{"".join(dots)}'


def _text(x: float, y: float, text: str, anchor: str, colour: str = GREY) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(text)}</text>"
    )

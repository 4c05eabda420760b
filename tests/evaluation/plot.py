"""Recall over the cap, as a picture: SVG by hand, PNG where `rsvg-convert` is installed."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator
from html import escape
from pathlib import Path

from .measure import Result

WIDTH, HEIGHT = 760, 470
LEFT, RIGHT, TOP, BOTTOM = 66, 24, 64, 104
COLOURS = ("#8a8f98", "#c77c11", "#1f5fbf", "#1b8a5a", "#a3338f", "#b3261e")
DASHES = ("2 4", "7 4", "", "", "", "")
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\""
CONVERTER = "rsvg-convert"


class PlotError(Exception):
    """The picture cannot be written in the format that was asked for."""


def check_plot(path: Path) -> None:
    """Raise `PlotError` now where `write_plot` would later."""
    if path.suffix == ".svg" or (path.suffix == ".png" and shutil.which(CONVERTER)):
        return
    if path.suffix == ".png":
        raise PlotError(f"A .png needs {CONVERTER}, which is not installed; ask for .svg instead.")
    raise PlotError("The picture is written as .svg or .png.")


def write_plot(path: Path, result: Result) -> None:
    check_plot(path)
    drawn = svg(result)
    if path.suffix == ".svg":
        path.write_text(drawn, encoding="utf-8")
        return
    subprocess.run(
        [CONVERTER, "--zoom", "2", "--output", str(path)], input=drawn.encode(), check=True
    )


def svg(result: Result) -> str:
    sessions = len(result.sessions)
    about = f"mean over {sessions} session{'s' if sessions > 1 else ''}"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    style = f'{FONT} font-size="13" fill="#24292f"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style} role="img">',
            "<title>Recall of what is needed next, over the cap</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            _text(LEFT, 28, "Recall of what is needed next", 'font-size="17" font-weight="600"'),
            _text(LEFT, 48, f"{about}; higher is better", 'fill="#57606a"'),
            *_axes(result.caps),
            *_lines(result),
            *_legend([system.name for system in result.systems]),
            "</svg>\n",
        ]
    )


def _x(cap: int, caps: tuple[int, ...]) -> float:
    first, last = math.log(min(caps)), math.log(max(caps))
    share = (math.log(cap) - first) / (last - first) if last > first else 0.5
    return LEFT + 14 + share * (WIDTH - LEFT - RIGHT - 28)


def _y(recall: float) -> float:
    return TOP + (1 - recall) * (HEIGHT - TOP - BOTTOM)


def _axes(caps: tuple[int, ...]) -> Iterator[str]:
    for percent in range(0, 101, 20):
        y = _y(percent / 100)
        colour = "#8c959f" if percent == 0 else "#e4e8ec"
        yield (
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
        )
        yield _text(LEFT - 8, y + 4.5, f"{percent} %", 'text-anchor="end"')
    for cap in caps:
        x, y = _x(cap, caps), _y(0)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 5}" stroke="#8c959f"/>'
        yield _text(x, y + 20, f"{cap:,}", 'text-anchor="middle"')
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield _text(middle, _y(0) + 42, "cap, in tokens (log scale)", 'text-anchor="middle"')


def _lines(result: Result) -> Iterator[str]:
    for index, system in enumerate(result.systems):
        colour, dash = _style(index)
        points = [
            (_x(cap, result.caps), _y(result.recall(system.name, cap)), cap) for cap in result.caps
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        yield f'<g stroke="{colour}" fill="{colour}">'
        yield f'<polyline points="{path}" fill="none" stroke-width="2.5"{dash}/>'
        for x, y, cap in points:
            value = result.recall(system.name, cap)
            about = escape(f"{system.name}, {cap:,}: {value:.1%}")
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{about}</title></circle>'
        yield "</g>"


def _legend(names: list[str]) -> Iterator[str]:
    columns = 3
    width = (WIDTH - LEFT - RIGHT) / columns
    for index, name in enumerate(names):
        colour, dash = _style(index)
        x = LEFT + index % columns * width
        y = HEIGHT - 36 + index // columns * 20
        yield (
            f'<line x1="{x:.1f}" x2="{x + 30:.1f}" y1="{y}" y2="{y}" stroke="{colour}" '
            f'stroke-width="2.5"{dash}/>'
        )
        yield _text(x + 38, y + 4.5, name)


def _style(index: int) -> tuple[str, str]:
    dash = DASHES[index % len(DASHES)]
    return COLOURS[index % len(COLOURS)], f' stroke-dasharray="{dash}"' if dash else ""


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    space = " " if attributes else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{space}{attributes}>{escape(text)}</text>'

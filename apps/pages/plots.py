"""Several series over one axis, as SVG: linear axes from zero, a line and a mark of its own for each series. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDE, TALL = 420, 262  # units of the viewBox; about pixels, so that text keeps its size
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 40
MOST_SERIES = 8  # that have a colour and a mark
TICKS = 5


@dataclass(frozen=True)
class Series:
    """`place`: which colour and mark it has, 0 … MOST_SERIES - 1; the same in every plot of a page."""

    label: str
    points: tuple[tuple[float, float], ...]
    place: int


def ticks(largest: float) -> list[float]:
    """0 and some round numbers up to the first that is not below `largest`."""
    if not largest or largest <= 0 or not math.isfinite(largest):
        return [0.0, 1.0]
    rough = largest / TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * each for each in (1, 2, 2.5, 5, 10) if size * each >= rough * 0.999)
    count = math.ceil(largest / step - 1e-9)
    return [round(step * each, 10) for each in range(count + 1)]


def number(value: float) -> str:
    """As an axis writes it: 12, 0.5, 1,500."""
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def across(series: Sequence[Series], *, label: str, x_name: str, y_name: str) -> SafeString:
    """The plot; where no series has a point, an empty text."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return format_html("{}", "")
    columns = ticks(max(x for one in drawn for x, _ in one.points))
    rows = ticks(max(y for one in drawn for _, y in one.points))

    def at_x(value: float) -> float:
        return round(LEFT + value / columns[-1] * (WIDE - LEFT - RIGHT), 1)

    def at_y(value: float) -> float:
        return round(TALL - BOTTOM - value / rows[-1] * (TALL - TOP - BOTTOM), 1)

    grid = format_html_join(
        "",
        '<path class="plot-grid" d="M{} {}H{}"></path><text class="plot-figure" x="{}" y="{}" text-anchor="end">{}</text>',
        ((LEFT, at_y(each), WIDE - RIGHT, LEFT - 7, at_y(each) + 4, number(each)) for each in rows),
    )
    below = format_html_join(
        "",
        '<text class="plot-figure" x="{}" y="{}" text-anchor="middle">{}</text>',
        ((at_x(each), TALL - BOTTOM + 17, number(each)) for each in columns),
    )
    lines = format_html_join(
        "",
        '<g class="plot-series" data-series="{}"><path class="plot-line" d="{}"></path>{}</g>',
        (
            (
                one.place,
                "M" + "L".join(f"{at_x(x)} {at_y(y)}" for x, y in one.points),
                format_html_join(
                    "",
                    '<g class="plot-mark"><title>{}: {} {} at {}</title>{}</g>',
                    (
                        (one.label, number(round(y, 3)), y_name, number(x), mark(one.place, at_x(x), at_y(y)))
                        for x, y in one.points
                    ),
                ),
            )
            for one in drawn
        ),
    )
    return format_html(
        '<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}<text class="plot-figure" x="{}" y="{}" '
        'text-anchor="end">{}</text>{}</svg>',
        WIDE,
        TALL,
        label,
        grid,
        below,
        WIDE - RIGHT,
        TALL - 5,
        x_name,
        lines,
    )


def mark(place: int, x: float, y: float) -> SafeString:
    """A dot, square, triangle or diamond, the second four hollow: told apart without colour."""
    hollow = "yes" if place % MOST_SERIES >= 4 else "no"
    shapes = (
        format_html('<circle cx="{}" cy="{}" r="4" data-hollow="{}"></circle>', x, y, hollow),
        format_html(
            '<rect x="{}" y="{}" width="7" height="7" data-hollow="{}"></rect>',
            round(x - 3.5, 1),
            round(y - 3.5, 1),
            hollow,
        ),
        format_html('<path d="M{} {}l4.6 8h-9.2z" data-hollow="{}"></path>', x, round(y - 5, 1), hollow),
        format_html('<path d="M{} {}l5 5l-5 5l-5 -5z" data-hollow="{}"></path>', x, round(y - 5, 1), hollow),
    )
    return shapes[place % 4]


def key(place: int) -> SafeString:
    """The line and mark of a series, for a legend or the first column of a table."""
    return format_html(
        '<svg class="plot-key" viewBox="0 0 24 12" aria-hidden="true"><g class="plot-series" data-series="{}"><path class="plot-line" '
        'd="M1 6H23"></path><g class="plot-mark">{}</g></g></svg>',
        place,
        mark(place, 12, 6),
    )

"""Numbers -> SVG. Pure: the same figures give the same picture; each has its words beside it in the page."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH = 1000  # units of the viewBox; the page stretches it
MOST_SHARDS = 120  # beyond this single shards can't be seen
GIB = 1024**3
NAMES = {
    "os": "system",
    "weights": "weights",
    "graphs": "graphs and activations",
    "kv": "KV cache",
    "others": "not ours",
    "cache": "page cache",
    "free": "free",
    "engine": "engine",
}


def scaled(parts: Sequence[tuple[str, int]], total: int) -> list[tuple[str, float, float]]:
    """(name, x, width) in units of WIDTH; too much is cut at the end, so that the bar never leaves its frame."""
    made: list[tuple[str, float, float]] = []
    x = 0.0
    for name, size in parts:
        width = max(0.0, min(size / total * WIDTH, WIDTH - x)) if total > 0 else 0.0
        if width > 0:
            made.append((name, round(x, 2), round(width, 2)))
        x += width
    return made


def memory_bar(
    parts: Sequence[tuple[str, int]], total: int, *, label: str = "", large: bool = False, key: str = "m"
) -> SafeString:
    """One node's memory, in bytes by owner. What is not ours is hatched. `key` must be unique in the page."""
    pieces = scaled(parts, total)
    words = ", ".join(f"{NAMES.get(name, name)} {size / GIB:.1f} GiB" for name, size in parts if size)
    rects = format_html_join(
        "",
        '<rect class="seg-{}" x="{}" width="{}" height="20"></rect>',
        ((name, x, width) for name, x, width in pieces),
    )
    others = [(x, width) for name, x, width in pieces if name == "others"]
    stripes = format_html_join(
        "", '<rect x="{}" width="{}" height="20" fill="url(#{}-hatch)"></rect>', ((x, w, key) for x, w in others)
    )
    hatch = (
        format_html(
            '<defs><pattern id="{}-hatch" width="16" height="20" patternUnits="userSpaceOnUse" '
            'patternTransform="skewX(-35)"><rect class="seg-stripes" width="7" height="20"></rect></pattern></defs>',
            key,
        )
        if others
        else ""
    )
    return format_html(
        '<svg class="memory" {} viewBox="0 0 {} 20" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<title>{}</title>{}<rect class="seg-free" width="{}" height="20"></rect>{}{}</svg>',
        format_html('data-size="large"') if large else "",
        WIDTH,
        label or words,
        words,
        hatch,
        WIDTH,
        rects,
        stripes,
    )


def shards(done: int | None, total: int | None, overall: float = 0.0) -> SafeString:
    """One box a shard, the one in progress lighter; a plain bar where shards are unknown or too many to tell apart."""
    label = f"{done} of {total} shards" if total and done is not None else f"{overall * 100:.0f} %"
    if not total or done is None or total > MOST_SHARDS:
        share = done / total if total and done is not None else overall
        boxes = [(0.0, WIDTH * min(1.0, max(0.0, share)), "done")]
        back = format_html('<rect width="{}" height="20" rx="3"></rect>', WIDTH)
    else:
        gap = 4 if total <= 60 else 2
        step = (WIDTH + gap) / total
        boxes = [(i * step, step - gap, "done" if i < done else "next" if i == done else "to-do") for i in range(total)]
        back = format_html("")
    rects = format_html_join(
        "",
        '<rect x="{}" width="{}" height="20" rx="3" data-is="{}"></rect>',
        ((round(x, 2), round(w, 2), what) for x, w, what in boxes),
    )
    return format_html(
        '<svg class="shards" viewBox="0 0 {} 20" preserveAspectRatio="none" role="img" aria-label="{}">{}{}</svg>',
        WIDTH,
        label,
        back,
        rects,
    )


def grows(seconds: Sequence[float | None]) -> list[int]:
    """How wide each phase of a track is drawn, 1..9: by the root of its time, so that a short one can be read."""
    known = [max(0.0, value or 0.0) ** 0.5 for value in seconds]
    most = max(known, default=0.0)
    return [max(1, round(value / most * 9)) if most else 1 for value in known]

"""Numbers -> SVG. Pure: the same figures give the same picture; each has its words beside it in the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH = 1000  # units of the viewBox; the page stretches it
MOST_SHARDS = 120  # beyond this single shards can't be seen
GIB = 1024**3
SMALLEST_OVER = 1 << 26  # bytes; less can't be seen
NAMES = {
    "os": "system",
    "weights": "weights",
    "graphs": "graphs and activations",
    "state": "state of sequences",
    "kv": "KV cache",
    "deployments": "other deployments",
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
    """One node's memory, in bytes by owner. What is not ours is hatched. What is wanted beyond `total` is drawn behind a line
    where the memory ends. `key` must be unique in the page."""
    over = max(0, sum(size for _, size in parts) - total)
    pieces = scaled(parts, total + over)
    words = ", ".join(f"{NAMES.get(name, name)} {size / GIB:.1f} GiB" for name, size in parts if size)
    if over >= SMALLEST_OVER:
        words += f", {over / GIB:.1f} GiB more than there is"
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
        '<title>{}</title>{}<rect class="seg-free" width="{}" height="20"></rect>{}{}{}</svg>',
        format_html('data-size="large"') if large else "",
        WIDTH,
        label or words,
        words,
        hatch,
        WIDTH,
        rects,
        stripes,
        _beyond(total, over, key) if over >= SMALLEST_OVER else "",
    )


def _beyond(total: int, over: int, key: str) -> SafeString:
    """What does not fit: crossed out in red, behind a line where the memory ends."""
    end = round(total / (total + over) * WIDTH, 2)
    return format_html(
        '<defs><pattern id="{}-over" width="12" height="20" patternUnits="userSpaceOnUse" patternTransform="skewX(35)">'
        '<rect class="seg-over" width="4" height="20"></rect></pattern></defs><rect x="{}" width="{}" height="20" '
        'fill="url(#{}-over)"></rect><rect class="seg-end" x="{}" width="4" height="20"></rect>',
        key,
        end,
        round(WIDTH - end, 2),
        key,
        max(0.0, end - 2),
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


# The cluster's graph: nodes in a row, the management network above them, one line a fabric subnet beneath.

COLUMN = 236  # pixels a node
MARGIN = 128  # for the names of the networks
BOX = (200, 62)
NODES_AT = 86
BUS_AT, BUS_STEP = 184, 74


@dataclass(frozen=True)
class Plug:
    """The RDMA ports behind one cable. `ports`: (name, state: up, down, unknown)."""

    ports: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class GraphNode:
    """A node of the graph. `tone`: ok, warn, bad, off. `jump`: place of the node through which it is reached."""

    name: str
    url: str
    about: str
    tone: str
    management: str  # address; "" unknown
    jump: int | None = None
    plugs: tuple[Plug, ...] = ()


@dataclass(frozen=True)
class Junction:
    """Where a node meets a fabric subnet. `node`: its place among the nodes."""

    node: int
    interface: str
    address: str
    about: str  # speed and MTU
    tone: str


@dataclass(frozen=True)
class Bus:
    """A fabric subnet with all that are in it."""

    name: str
    junctions: tuple[Junction, ...]


def cluster_graph(nodes: Sequence[GraphNode], buses: Sequence[Bus]) -> SafeString:
    """Nodes, the way to each of them, and the fabric's subnets with address, speed and MTU of every end."""
    width = MARGIN + COLUMN * max(1, len(nodes)) + 8
    height = BUS_AT + BUS_STEP * len(buses) - (22 if buses else 24)
    words = f"{len(nodes)} nodes, {len(buses)} fabric subnets"
    return format_html(
        '<svg class="graph" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}"><title>{}</title>{}{}{}</svg>',
        width,
        height,
        width,
        height,
        words,
        words,
        _management(nodes, width),
        format_html_join("", "{}", ((_bus(place, bus, len(buses)),) for place, bus in enumerate(buses))),
        format_html_join("", "{}", ((_node(place, node),) for place, node in enumerate(nodes))),
    )


def _middle(place: int) -> float:
    return MARGIN + COLUMN * place + BOX[0] / 2


def _management(nodes: Sequence[GraphNode], width: float) -> SafeString:
    """A line along the top with a drop to every node that is reached directly; an arrow from its jump host to each
    other."""
    direct = [place for place, node in enumerate(nodes) if node.jump is None]
    line = format_html(
        '<text class="graph-net" x="0" y="34">management</text><path class="graph-line" d="M{} 30H{}"></path>',
        MARGIN,
        _middle(max(direct, default=0)) + 0.5,
    )
    drops = format_html_join(
        "",
        '<path class="graph-line" data-status="{}" d="M{} 30V{}"></path><text class="graph-small" x="{}" y="54">{}</text>',
        (
            (
                nodes[place].tone,
                _middle(place),
                NODES_AT,
                _middle(place) + 8,
                nodes[place].management or "address unknown",
            )
            for place in direct
        ),
    )
    jumps = format_html_join(
        "",
        '<path class="graph-jump" d="M{} {}V66H{}V{}" marker-end="url(#graph-arrow)"></path>'
        '<text class="graph-small" x="{}" y="60">via {}</text>',
        (
            (
                _middle(node.jump) + 60,
                NODES_AT,
                _middle(place),
                NODES_AT - 7,
                _middle(place) - 96 if place > node.jump else _middle(place) + 8,
                nodes[node.jump].name,
            )
            for place, node in enumerate(nodes)
            if node.jump is not None and node.jump != place
        ),
    )
    arrow = format_html(
        '<defs><marker id="graph-arrow" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="graph-head{}" d="M0 0L8 4L0 8z"></path></marker></defs>',
        "",
    )
    return format_html("{}{}{}{}", arrow, line if direct else "", drops, jumps)


def _node(place: int, node: GraphNode) -> SafeString:
    x = MARGIN + COLUMN * place
    return format_html(
        '<a href="{}"><g data-status="{}"><rect class="graph-node" x="{}" y="{}" width="{}" height="{}" rx="8"></rect>'
        '<circle class="graph-dot" cx="{}" cy="{}" r="4"></circle><text class="graph-name" x="{}" y="{}">{}</text>'
        '<text class="graph-small" x="{}" y="{}">{}</text>{}</g></a>',
        node.url,
        node.tone,
        x,
        NODES_AT,
        BOX[0],
        BOX[1],
        x + 16,
        NODES_AT + 20,
        x + 27,
        NODES_AT + 25,
        _cut(node.name, 20),
        x + 12,
        NODES_AT + 43,
        _cut(node.about, 30),
        _plugs(x, node.plugs),
    )


def _plugs(x: float, plugs: Sequence[Plug]) -> SafeString:
    """Squares on the lower edge of the box, those of one cable joined."""
    drawn: list[SafeString] = []
    at = x + 14.0
    for plug in plugs[:8]:
        if len(plug.ports) > 1:
            end = at + 18 * (len(plug.ports) - 1)
            drawn.append(
                format_html('<path class="graph-twin" d="M{} {}H{}"></path>', at + 5, NODES_AT + BOX[1], end + 5)
            )
        for name, state in plug.ports:
            drawn.append(
                format_html(
                    '<rect class="graph-port" data-is="{}" x="{}" y="{}" width="10" height="10" rx="2"><title>{} {}'
                    "</title></rect>",
                    state,
                    at,
                    NODES_AT + BOX[1] - 5,
                    name,
                    state,
                )
            )
            at += 18
        at += 12
    return format_html_join("", "{}", ((piece,) for piece in drawn))


def _bus(place: int, bus: Bus, count: int) -> SafeString:
    y = BUS_AT + BUS_STEP * place
    first = BOX[0] - 20 - 16 * (count - 1)  # the drops stand side by side at the right, so that none crosses a label
    ends = [MARGIN + COLUMN * one.node + first + 16 * place for one in bus.junctions]
    left, right = (min(ends), max(ends)) if ends else (MARGIN, MARGIN)
    alone = len({one.node for one in bus.junctions}) < 2
    drops = format_html_join(
        "", "{}", ((_junction(one, end, y),) for one, end in zip(bus.junctions, ends, strict=True))
    )
    return format_html(
        '<text class="graph-net" x="0" y="{}">{}</text><path class="graph-bus" data-alone="{}" d="M{} {}H{}"></path>{}',
        y + 4,
        bus.name,
        "yes" if alone else "no",
        left - (14 if left == right else 0),
        y,
        right + (14 if left == right else 0),
        drops,
    )


def _junction(one: Junction, end: float, y: float) -> SafeString:
    x = MARGIN + COLUMN * one.node
    return format_html(
        '<g data-status="{}"><path class="graph-link" d="M{} {}V{}"></path><circle class="graph-dot" cx="{}" cy="{}" r="4">'
        '</circle><text class="graph-code" x="{}" y="{}">{}</text><text class="graph-small" x="{}" y="{}">{}</text>'
        '<text class="graph-small" x="{}" y="{}">{}</text></g>',
        one.tone,
        end,
        NODES_AT + BOX[1],
        y,
        end,
        y,
        x,
        y + 17,
        one.address,
        x,
        y + 31,
        one.interface,
        x,
        y + 45,
        one.about,
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def memory_curve(points: Sequence[Sequence[float]], floor: int, *, label: str) -> SafeString:
    """Available memory over time as a line, [unix seconds, bytes] each; the line below which a load is stopped is dashed."""
    first, span = points[0][0], max(1.0, points[-1][0] - points[0][0])
    most = max(max(size for _, size in points) * 1.05, float(floor), 1.0)

    def height(size: float) -> float:
        return round(58 - size / most * 56, 1)

    line = " ".join(f"{round((moment - first) / span * WIDTH, 1)},{height(size)}" for moment, size in points)
    stop = (
        format_html(
            '<line class="curve-floor" x1="0" x2="{}" y1="{}" y2="{}"></line>', WIDTH, height(floor), height(floor)
        )
        if floor
        else ""
    )
    return format_html(
        '<svg class="curve" viewBox="0 0 {} 60" preserveAspectRatio="none" role="img" aria-label="{}"><title>{}</title>'
        '{}<polyline class="curve-line" points="{}"></polyline></svg>',
        WIDTH,
        label,
        label,
        stop,
        line,
    )


# A node's history: one figure over time, with what nobody saw left out.

TALL = 100  # units of the viewBox


@dataclass(frozen=True)
class Sample:
    at: float  # unix seconds
    value: float


@dataclass(frozen=True)
class Sign:
    """A moment of a history. `tone`: bad, warn, ok, off."""

    at: float
    tone: str
    text: str


def over_time(
    samples: Sequence[Sample],
    *,
    start: float,
    end: float,
    low: float,
    high: float,
    gaps: Sequence[tuple[float, float]] = (),
    signs: Sequence[Sign] = (),
    label: str,
    filled: bool = False,
) -> SafeString:
    """A line from `start` to `end` (unix seconds) between `low` and `high`; broken where `gaps` say so. `label` says it in words."""
    width, height = max(1.0, end - start), (high - low) or 1.0

    def x(at: float) -> float:
        return round(min(max((at - start) / width, 0.0), 1.0) * WIDTH, 1)

    def y(value: float) -> float:
        return round(TALL - min(max((value - low) / height, 0.0), 1.0) * TALL, 1)

    lines = [[(x(one.at), y(one.value)) for one in part] for part in _unbroken(samples, gaps)]
    areas = [
        f"M{part[0][0]} {TALL}L{' '.join(f'{a} {b}' for a, b in part)}L{part[-1][0]} {TALL}Z"
        for part in lines
        if filled and len(part) > 1
    ]
    strokes = [
        f"M{part[0][0]} {part[0][1]}" + ("h0.1" if len(part) == 1 else f"L{' '.join(f'{a} {b}' for a, b in part[1:])}")
        for part in lines
    ]
    return format_html(
        '<svg class="over-time" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}"><title>{}</title>'
        "{}{}{}{}{}</svg>",
        WIDTH,
        TALL,
        label,
        label,
        format_html_join("", '<path class="time-grid" d="M0 {}H{}"></path>', ((at, WIDTH) for at in (25, 50, 75))),
        format_html_join(
            "",
            '<rect class="time-gap" x="{}" width="{}" height="{}"></rect>',
            ((x(a), round(max(1.0, x(b) - x(a)), 1), TALL) for a, b in gaps),
        ),
        format_html_join("", '<path class="time-area" d="{}"></path>', ((one,) for one in areas)),
        format_html_join("", '<path class="time-line" d="{}"></path>', ((one,) for one in strokes)),
        format_html_join(
            "",
            '<path class="time-sign" data-status="{}" d="M{} 0V{}"><title>{}</title></path>',
            ((one.tone, x(one.at), TALL, one.text) for one in signs if start <= one.at <= end),
        ),
    )


def _unbroken(samples: Sequence[Sample], gaps: Sequence[tuple[float, float]]) -> list[list[Sample]]:
    """The samples in pieces, cut at every gap."""
    ends = [end for _, end in gaps]
    parts: list[list[Sample]] = []
    for place, one in enumerate(samples):
        if not place or any(samples[place - 1].at < end <= one.at for end in ends):
            parts.append([])
        parts[-1].append(one)
    return parts

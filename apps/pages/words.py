"""Numbers, times and states in words: the template filters and tags of every page. Loaded as builtins."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from apps.deployments.state import rank_state
from apps.diagnosis.reasons import REASONS
from apps.pages.charts import NAMES

register = template.Library()
GIB = 1024**3
TONES = ("ok", "busy", "warn", "bad", "off")
UNKNOWN = "unknown"
LONGEST_WHOLE = 26  # characters of a word that is never broken in a table

# state -> tone, for deployments, runs, steps, nodes, ranks and plans alike
TONE_OF_STATE = {
    "serving": "ok",
    "succeeded": "ok",
    "ready": "ok",
    "active": "ok",
    "running": "busy",
    "launching": "busy",
    "stopping": "busy",
    "loading": "busy",
    "starting": "busy",
    "reserving": "busy",
    "queued": "busy",
    "degraded": "warn",
    "lost": "warn",
    "interrupted": "warn",
    "unconfirmed": "warn",
    "failed": "bad",
    "gone": "bad",
    "draft": "off",
    "stopped": "off",
    "unreachable": "off",
    "cancelled": "off",
    "waiting": "off",
    "skipped": "off",
    "unknown": "off",
}
ICON_OF_TONE = {"ok": "dot", "busy": "busy", "warn": "dot", "bad": "bad", "off": "dot"}


def duration_words(seconds: float | None) -> str:
    """Seconds as 4 s, 5 min 6 s, 21 min, 2 h 40 min, 3 days; None is unknown. static/js/times.js says the same."""
    if seconds is None:
        return UNKNOWN
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{minutes} min {rest} s" if rest and whole < 1200 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if whole < 86400:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days = whole // 86400
    return f"{days} day{'' if days == 1 else 's'}"


def moment(value: Any) -> dt.datetime | None:
    """A datetime from a datetime, unix seconds or ISO text; None for what is none of these."""
    if isinstance(value, dt.datetime):
        return value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    if isinstance(value, bool) or value in (None, ""):
        return None
    try:
        if isinstance(value, int | float):
            return dt.datetime.fromtimestamp(value, dt.UTC)
        made = dt.datetime.fromisoformat(str(value))
    except (ValueError, OverflowError, OSError):
        return None
    return made if made.tzinfo else made.replace(tzinfo=dt.UTC)


def _time(value: Any, form: str, text: str) -> str:
    at = moment(value)
    if at is None:
        return ""
    exact = at.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html('<time datetime="{}" title="{}" data-time="{}">{}</time>', at.isoformat(), exact, form, text)


@register.filter
def ago(value: Any) -> str:
    """`6 s ago`, with the exact time on hover; empty for no time."""
    at = moment(value)
    if at is None:
        return ""
    seconds = (timezone.now() - at).total_seconds()
    return _time(value, "ago", f"in {duration_words(-seconds)}" if seconds < -1 else f"{duration_words(seconds)} ago")


@register.filter
def age(value: Any) -> str:
    """`6 s`: how old it is."""
    at = moment(value)
    return "" if at is None else _time(value, "age", duration_words((timezone.now() - at).total_seconds()))


@register.filter
def clock(value: Any) -> str:
    """`14:31` in the browser's zone (UTC without scripts), with the date when it is not from today."""
    at = moment(value)
    if at is None:
        return ""
    near = abs((timezone.now() - at).total_seconds()) < 64800
    return _time(value, "clock", at.astimezone(dt.UTC).strftime("%H:%M" if near else "%m-%d, %H:%M"))


@register.filter
def exact(value: Any) -> str:
    at = moment(value)
    return "" if at is None else _time(value, "exact", at.astimezone(dt.UTC).strftime("%Y-%m-%d, %H:%M:%S"))


@register.filter
def duration(value: Any) -> str:
    return duration_words(None if value in (None, "") else float(value))


@register.filter
def gib(value: Any) -> str:
    """Bytes as `104 GiB` (one decimal under 100)."""
    if value in (None, ""):
        return UNKNOWN
    amount = float(value) / GIB
    return f"{amount:.0f} GiB" if amount >= 99.95 else f"{amount:.1f} GiB"


@register.filter
def mib(value: Any) -> str:
    """Bytes as `52.1 MiB`."""
    return UNKNOWN if value in (None, "") else f"{float(value) / (1 << 20):.1f} MiB"


@register.filter
def gib_number(value: Any) -> str:
    return gib(value).removesuffix(" GiB")


@register.filter
def gigabytes(value: Any) -> str:
    """Bytes in the unit of disks and hubs: `119 GB`, `640 MB`."""
    if value in (None, ""):
        return UNKNOWN
    amount = float(value)
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= size:
            scaled = amount / size
            return f"{scaled:.0f} {unit}" if scaled >= 99.95 else f"{scaled:.1f} {unit}"
    return f"{amount:.0f} B"


@register.filter
def tokens(value: Any) -> str:
    """A number of tokens: 131,072 as it is, from a million on as 1.31 M."""
    if value in (None, ""):
        return UNKNOWN
    amount = int(value)
    return f"{amount / 1e6:.2f} M tokens" if amount >= 1_000_000 else f"{amount:,} tokens"


@register.filter
def thousands(value: Any) -> str:
    return UNKNOWN if value in (None, "") else f"{int(value):,}"


@register.filter
def coded(value: Any) -> str:
    """A sentence whose commands stand between backticks, with those set as code."""
    parts = str(value or "").split("`")
    if len(parts) % 2 == 0:  # one without its other half
        return format_html("{}", value)
    return format_html_join(
        "", "{}", ((format_html("<code>{}</code>", part) if at % 2 else part,) for at, part in enumerate(parts))
    )


@register.filter
def percent(value: Any) -> str:
    """A share 0..1 as `31 %`."""
    return UNKNOWN if value in (None, "") else f"{float(value) * 100:.0f} %"


@register.filter
def or_unknown(value: Any) -> Any:
    """The value, or the word unknown for None and empty text: a page never shows a bare dash."""
    return UNKNOWN if value is None or value == "" else value


@register.filter
def word(value: Any) -> str:
    """`tensor_parallel` as `tensor parallel`."""
    return str(value).replace("_", " ")


@register.filter
def lookup(mapping: Any, key: Any) -> Any:
    """mapping[key], or None."""
    try:
        return mapping[key]
    except (KeyError, IndexError, TypeError):
        return None


@register.filter
def tone(state: Any) -> str:
    """ok, busy, warn, bad or off: the tone in which a state is shown."""
    return TONE_OF_STATE.get(str(state), "off")


register.filter("rank_state", rank_state)


@register.filter
def wrapping(cell: Any) -> str:
    """The class of a table's cell: only one that holds a word too long for a column may break inside of words."""
    return "anywhere" if any(len(each) > LONGEST_WHOLE for each in str(cell).split()) else ""


@register.filter
def tone_of_message(tags: str) -> str:
    return {"success": "ok", "warning": "warn", "error": "bad"}.get(tags.split(" ")[-1], "busy")


@register.filter
def short(digest: Any) -> str:
    """The first seven digits of a digest."""
    return str(digest)[:7]


@register.simple_tag
def icon(name: str) -> SafeString:
    """A drawing of static/img/icons.svg; decoration only, the word stands beside it."""
    return format_html(
        '<svg class="icon icon-{0}" width="14" height="14" aria-hidden="true"><use href="{1}#{0}"></use></svg>',
        name,
        static("img/icons.svg"),
    )


@register.simple_tag
def status(tone_name: str, words: str, drawing: str = "") -> SafeString:
    """Icon, word and colour together: colour alone never says anything."""
    tone_name = tone_name if tone_name in TONES else tone(tone_name)
    return format_html(
        '<span class="status" data-status="{}">{}{}</span>', tone_name, icon(drawing or ICON_OF_TONE[tone_name]), words
    )


@register.simple_tag
def state(value: Any, more: str = "", phase: str = "") -> SafeString:
    """The state of a deployment, run, step or node as a status: `lost: replaced`, `loading, shard 17 of 39`."""
    name = str(value)
    words = word(phase) if phase and name in ("running", "launching") else word(name)
    if more:
        words += f": {word(more)}"
    return status(tone(name), words, {"waiting": "off", "queued": "wait", "succeeded": "ok"}.get(name, ""))


@register.simple_tag(takes_context=True)
def querystring_with(context: template.Context, **changes: Any) -> str:
    """The page's query with some values changed (None or empty removes one)."""
    query = context["request"].GET.copy()
    for key, value in changes.items():
        query.pop(key, None)
        if value not in (None, ""):
            query[key] = value
    return str(query.urlencode())


@register.simple_tag
def took(started: Any, ended: Any) -> str:
    """How long something took: `12 min 3 s`, empty when it never began."""
    begin, end = moment(started), moment(ended)
    return "" if begin is None or end is None else duration_words((end - begin).total_seconds())


# The common acts of the trail as they read in "ana … qwen3.5-122b"; others are taken word by word.
ACTS = {
    ("deployment:launch", "requested"): "asked to launch",
    ("deployment:relaunch", "requested"): "asked to relaunch",
    ("deployment:stop", "requested"): "asked to stop",
    ("deployment:adopt", "requested"): "asked to adopt",
    ("deployment:restore", "requested"): "asked to restore the services before",
    ("deployment:restored", "done"): "restored the services before",
    ("node:restore", "requested"): "asked to put back what was before on",
    ("run:cancel", "requested"): "asked to cancel",
    ("node:probe", "requested"): "asked to probe",
    ("node:host_key_confirmed", "done"): "confirmed the host key of",
    ("node:host_key_replaced", "done"): "trusted a new host key of",
    ("node:host_key_mismatch", "done"): "saw another host key at",
    ("access:denied", "denied"): "was refused",
}


@register.filter
def act_words(entry: Any) -> str:
    """An audit entry's act in words: `relaunched`, `asked to launch`."""
    known = ACTS.get((entry.action, entry.outcome))
    if known:
        kind = str((entry.after or {}).get("type", "")).removeprefix("ssh-")
        return known.replace("host key", f"{kind} host key") if kind else known
    thing, _, what = str(entry.action).partition(":")
    words = what.replace("_", " ")
    if thing in ("deployment", "node", "run", "recipe"):
        return (
            "marked lost"
            if what == "lost"
            else f"saw {words}"
            if what in ("serving", "degraded", "unreachable")
            else words
        )
    return f"{thing.replace('_', ' ')} {words}"


@register.filter
def tone_of_outcome(outcome: Any) -> str:
    return {"done": "ok", "requested": "busy", "failed": "bad", "denied": "warn"}.get(str(outcome), "off")


@register.simple_tag
def legend(*names: str) -> SafeString:
    """Colour and word of each memory segment."""
    return format_html_join(
        "",
        '<span><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="seg-{}" width="10" height="10"></rect>{}</svg>'
        "{}</span>",
        ((name, STRIPES if name == "others" else "", NAMES.get(name, name)) for name in names),
    )


STRIPES = format_html('<path class="seg-stripe-lines" d="M0 7L7 0M3 10L10 3{}"></path>', "")


@register.filter
def reason_title(name: Any) -> str:
    """A reason's title out of the table; the name itself for an unknown one."""
    known = REASONS.get(str(name).partition(":")[0])
    return known.title if known else word(name) or "unreachable"

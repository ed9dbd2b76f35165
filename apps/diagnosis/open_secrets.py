"""Values that are secrets by where they stand in what a person wrote: under a name that tells, behind an option or a header that
takes one. Here more is taken for a secret than in a log (masking), because what is taken by mistake costs a line of a recipe. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from apps.diagnosis.masking import MASK

# Names whose value is a secret: HF_TOKEN, splunk-token, registry_password, X-Api-Key, requirepass.
_TELLING = re.compile(
    r"(?:.*[_.\- ])?(?:[a-z0-9]*(?:token|password|passwd|passphrase|api[_-]?key|secret|requirepass)|pass|pwd|credentials?|"
    r"access[_-]?key|private[_-]?key|secret[_-]?key|secret[_-]?access[_-]?key|authorization)",
    re.IGNORECASE,
)
# Tokens of a tokenizer or counts of them, and where a shell is.
_HARMLESS = re.compile(
    r"(?:.*[_.\- ])?(?:eos|bos|pad|unk|sep|cls|mask|stop|start|end|think|reasoning|image|video|audio|special|max|min|num|per|first|"
    r"next|last|new|draft|each|added|by|a|the|no)[_.\- ]?token|pwd|oldpwd",
    re.IGNORECASE,
)
_FILES = ("-file", "_file", "-path", "_path")
TAKES_SECRET = ("-hft",)  # short options of engines: llama-server --hf-token
_API_KEY = "--api-key"
_PAIR = re.compile(
    r"""(?<![\w.\-])(?P<name>[A-Za-z][\w.\-]*)['"]?[ \t]{0,4}[:=][ \t]{0,4}(?:(?i:bearer|basic|digest|token)[ \t]{1,4})?"""
    r"""(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,'"}\])#;&|]+)"""
)
_HEADER = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9-]*):[ \t]*(?P<value>.+)")
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|digest)[ \t]+")
_NO_VALUE = re.compile(r"(?i)null|none|true|false|yes|no|on|off|~|[|>][+-]?|\[|\{|\$.*|\{[^{}]*\}|[*&]\S*|\d{1,3}|")
_CLIENTS = ("curl", "wget", "http", "https", "xh")
_BY_USER = ("-u", "--user", "--proxy-user", "-U", "--http-user")
_HEADERS = ("-H", "--header", "--proxy-header")


def is_telling(name: str) -> bool:
    """Whether what stands under this name is a secret."""
    return len(name) < 200 and bool(_TELLING.fullmatch(name)) and not _HARMLESS.fullmatch(name)


def is_value(text: str) -> bool:
    """Whether this may be a secret's value, and is not a reference to one, a placeholder, our own mark or no value at all."""
    return not _NO_VALUE.fullmatch(text) and text != MASK.decode() and not text.startswith("${")


def takes_secret(option: str) -> bool:
    """Whether an option's value is a secret: --hf-token, --admin-api-key, --ssl-keyfile-password, -hft; also a beginning of
    --api-key, which argparse takes for the whole."""
    option = option.replace("_", "-").lower()
    if not option.startswith("--"):
        return option in TAKES_SECRET
    begun = len(option) > 4 and _API_KEY.startswith(option)
    return begun or (not option.endswith(_FILES) and is_telling(option.removeprefix("--")))


def in_words(words: Sequence[str]) -> Iterator[str]:
    """Values among the words of one command."""
    program = words[0].rpartition("/")[2] if words else ""
    signing_in = "login" in words[:4]
    for place, word in enumerate(words):
        name, mark, value = word.partition("=")
        following = words[place + 1] if place + 1 < len(words) else ""
        if takes_secret(name):
            given = value if mark else "" if following.startswith("--") else following
        elif signing_in and word in ("-p", "-t"):
            given = following
        elif program in _CLIENTS and name in _BY_USER:
            given = (value if mark else following).partition(":")[2]
        elif program in _CLIENTS and name in _HEADERS:
            yield from _in_header(value if mark else following)
            continue
        else:
            yield from in_line(word)
            continue
        if given and is_value(given):
            yield given


def _in_header(text: str) -> Iterator[str]:
    found = _HEADER.fullmatch(text.strip())
    if found and is_telling(found["name"]):
        value = _SCHEME.sub("", found["value"], count=1).strip()
        if is_value(value):
            yield value


def in_line(text: str) -> Iterator[str]:
    """Values in running text: NAME=value, name: value, also several of them (a=b,password=c)."""
    if "=" not in text and ":" not in text:
        return
    for found in _PAIR.finditer(text):
        value = found["value"].strip("'\"")
        if is_telling(found["name"]) and is_value(value):
            yield value


def given_away(words: Sequence[str]) -> bool:
    """Whether some word of a command is a secret's value."""
    return next(in_words(words), None) is not None

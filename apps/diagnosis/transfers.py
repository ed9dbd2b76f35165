"""Copies and downloads: rsync (--info=progress2), hf and huggingface-cli, docker pull. Progress, what is left, what
went wrong."""

from __future__ import annotations

import re

from apps.diagnosis.alike import Found
from apps.diagnosis.book import Act, Rule, counted
from apps.diagnosis.signs import EFFECT, ROOT, Sign, number
from apps.diagnosis.story import Line, Story

MOST_LAYERS = 512


def _rule(kind: str, trigger: str, pattern: str, act: Act, votes: int = 2) -> Rule:
    return Rule(kind, trigger, re.compile(pattern), act, votes)


def _advance(story: Story, phase: str, share: float, done: int | None, total: int | None, unit: str) -> None:
    """`overall` never falls, although rsync's own percentage may while it still finds files."""
    share = min(share, 1.0)
    if story.transfer is not None and story.transfer[1] > share:
        share = story.transfer[1]
    story.transfer = (phase, share, done, total, unit)


_SCALES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _size(text: str) -> int:
    """Bytes of rsync's figure: "188,743,683", "188.743.683" (other locales) or "1.32G" (with -h)."""
    plain = text.replace(",", "")
    if plain.isdecimal():
        return int(plain)
    scale = _SCALES.get(text[-1].upper())
    if scale is not None:
        return round(float(text[:-1].replace(",", ".")) * scale)
    return int(re.sub(r"\D", "", text))


def _rsync_frame(story: Story, match: Found, line: Line) -> None:
    size, percent, facts = _size(match["bytes"]), int(match["pct"]), story.facts
    facts["bytes"], facts["pct"], facts["rate"], facts["eta"] = size, percent, match["rate"], match["eta"]
    facts["done"] = False
    if match["left"] is not None:
        left = int(match["left"])
        facts["files_done"], facts["to_check"] = int(match["files"]), [left, int(match["all"])]
        facts["done"] = left == 0 and percent == 100 and match["list"] == "to"
    _advance(story, "copying", percent / 100, size, round(size * 100 / percent) if percent else None, "bytes")


def _rsync_end(story: Story, match: Found, line: Line) -> None:
    story.fact(done=True)
    story.milestone("copied", line, sent_bytes=_size(match["sent"]))
    before = story.transfer
    _advance(story, "copied", 1.0, before[2] if before else None, before[2] if before else None, "bytes")


_FETCHING = re.compile(r"Fetching \d+ files")
_DOWNLOADED = re.compile(r"Download(?:ing|ed| complete)\b")
_OF_A_MODEL = re.compile(r"\.(?:safetensors|bin|gguf|json|txt|model|pt|pth)$")


def _hub_bars(story: Story, match: Found, line: Line) -> None:
    for bar in line.bars:
        if "Fetching" in bar.label and _FETCHING.search(bar.label):
            story.votes["hf"] += 3
            story.fact(files=[round(bar.done), round(bar.total or 0)])
            share = bar.done / bar.total if bar.total else 0.0
            _advance(story, "fetching", share, round(bar.done), round(bar.total or 0), "files")
        elif bar.unit != "bytes":
            continue
        elif _DOWNLOADED.match(bar.label):
            story.votes["hf"] += 3
            story.fact(bytes=round(bar.done), pct=bar.percent, rate=bar.rate.strip())
            _advance(story, "fetching", bar.percent / 100, round(bar.done), round(bar.total or 0), "bytes")
        elif _OF_A_MODEL.search(bar.label):
            story.votes["hf"] += 1
            name = bar.label.rsplit(" ", 1)[-1]
            story.fact(current={"file": name, "pct": bar.percent, "rate": bar.rate.strip()})
            if story.transfer is None or story.transfer[4] == "bytes":
                _advance(story, "fetching", bar.percent / 100, round(bar.done), round(bar.total or 0), "bytes")


_XET = re.compile(r"\|\s*(?P<done>[\d.]+\s?[kKMGT]?)B?\s*/\s*(?P<total>[\d.]+\s?[kKMGT]?)B?")


def _xet(story: Story, match: Found, line: Line) -> None:
    """The bars of hf-xet carry no brackets: `Processing Files (0 / 2) :  33%|███ | 1.32G / 4.00G, 110MB/s`."""
    sizes = _XET.search(line.text)
    if sizes is None:
        return
    done, total = _size(sizes["done"].replace(" ", "")), _size(sizes["total"].replace(" ", ""))
    if match["all"]:
        story.fact(files=[int(match["ready"]), int(match["all"])])
    story.fact(bytes=done, pct=int(match["pct"]))
    _advance(story, "fetching", int(match["pct"]) / 100, done, total, "bytes")


def _hub_vote(story: Story, match: Found, line: Line) -> None:
    story.milestone("download_started", line, file=match["file"])


def _retry_after(story: Story, match: Found, line: Line) -> None:
    found = story.signs.get(ROOT)
    if found is not None and found.reason == "hub_rate_limited":
        found.values["retry_after_s"] = int(match["seconds"])


_WORDS = {"Pull complete": "done", "Already exists": "done"}


def _layer(story: Story, match: Found, line: Line) -> None:
    marks = story.marks
    if "layers_full" in marks and story.transfer is marks["layers_told"]:
        return  # no more of them are counted
    _count_layer(story, match["id"], there=match["state"] in _WORDS)


def _count_layer(story: Story, identity: str, *, there: bool) -> None:
    marks = story.marks
    if "layers" not in marks:
        marks["layers"], marks["layers_done"], marks["layers_told"] = set(), set(), None
    seen, done = marks["layers"], marks["layers_done"]
    if (
        story.transfer is marks["layers_told"]
        and (len(seen) >= MOST_LAYERS or identity in seen)
        and (not there or len(done) >= MOST_LAYERS or identity in done)
    ):
        return  # told before, and nothing else since
    if identity not in seen and len(seen) < MOST_LAYERS:
        seen.add(identity)
    if there and len(done) < MOST_LAYERS:
        done.add(identity)
    known, pulled = len(seen), len(done)
    story.facts["layers"], story.facts["done"] = known, pulled
    # New layers may still be named while the first are done, and the end is said by its own line.
    _advance(story, "pulling", min(pulled / known, 0.99), pulled, known, "layers")
    marks["layers_told"] = story.transfer
    if pulled >= MOST_LAYERS:
        marks["layers_full"] = True


def _platform(story: Story, match: Found, line: Line) -> None:
    story.warn("image_platform", "The image is built for another processor than this node's", line, severity="warning")


def _podman(story: Story, match: Found, line: Line) -> None:
    story.first(image=match["image"])
    story.milestone("pull_started", line, image=match["image"])


def _blob(story: Story, match: Found, line: Line) -> None:
    """podman and skopeo name a layer when it begins and again when it is there."""
    _count_layer(story, match["id"], there=match["state"] is not None)


def _podman_pulled(story: Story, match: Found, line: Line) -> None:
    story.milestone("pulled", line, image=story.facts.get("image"))
    _advance(story, "pulled", 1.0, story.facts.get("done"), story.facts.get("layers"), "layers")


def _pulling(story: Story, match: Found, line: Line) -> None:
    story.first(image=f"{match['repository']}:{match['tag']}")
    story.milestone("pull_started", line, image=story.facts["image"])


def _pulled(story: Story, match: Found, line: Line) -> None:
    story.marks["image_ended"] = True
    story.milestone("pulled", line, image=match["image"])
    _advance(story, "pulled", 1.0, story.facts.get("done"), story.facts.get("layers"), "layers")


_LAYER = (
    r"^\s*(?:[^\s\w]{1,3} )?(?P<id>[0-9a-f]{12}):? (?P<state>Pull complete|Already exists|Pulling fs layer|Waiting|Verifying "
    r"Checksum|Download complete|Downloading|Extracting|Retrying)"
)
_FRAME = (
    r"^\s*(?P<bytes>\d[\d,.]{0,30}[KMGTkmgt]?)\s{1,8}(?P<pct>\d{1,3})%\s{1,8}(?P<rate>[\d.,]{1,12}[kKMGT]?B/s)\s{1,8}"
    r"(?P<eta>\d{1,6}:\d\d:\d\d)"
    r"(?:\s{1,4}\(xfe?r#(?P<files>\d{1,9}), (?P<list>to|ir)-chk=(?P<left>\d{1,9})/(?P<all>\d{1,9})\))?"
)

RULES: tuple[Rule, ...] = (
    _rule("rsync", "%", _FRAME, _rsync_frame, 2),
    _rule("rsync", "received", r"^sent (?P<sent>[\d.,]+[KMGT]?) bytes\s+received [\d.,]+[KMGT]? bytes", _rsync_end, 5),
    _rule(
        "rsync",
        "sending",
        r"^(?:sending|receiving|building) (?:incremental )?file list",
        counted,
        4,
    ),
    _rule(
        "rsync",
        "vanished",
        r"^file has vanished: |^rsync warning: some files vanished",
        lambda story, match, line: story.warn(
            "files_vanished", "Files were removed while they were copied", line, severity="warning"
        ),
        4,
    ),
    _rule(
        "rsync",
        "verification",
        r"failed verification -- update (?:discarded|retained)",
        lambda story, match, line: story.warn(
            "copied_again", "A file arrived damaged and is copied again", line, severity="warning"
        ),
        4,
    ),
    _rule("rsync", "rsync", r"^rsync(?: error| warning)?: ", counted, 4),
    _rule("hf", "%|", r"%", _hub_bars, 0),
    _rule(
        "hf",
        "processing",
        r"Processing Files \((?P<ready>\d+) / (?P<all>\d+)\)\s*:\s*(?P<pct>\d{1,3})%",
        _xet,
        4,
    ),
    _rule("hf", "reconstructing", r"Reconstructing\b(?P<ready>)(?P<all>)[^|]{0,60}:\s*(?P<pct>\d{1,3})%", _xet, 4),
    _rule(
        "hf",
        "waiting",
        r"Still waiting to acquire lock on",
        lambda story, match, line: story.warn("download_lock", "Another download holds the lock of this folder", line),
        3,
    ),
    _rule(
        "hf",
        "disk",
        r"Not enough free disk space to download the file",
        lambda story, match, line: story.warn(
            "disk_low", "The disk has less room than the file needs", line, severity="warning"
        ),
        3,
    ),
    _rule("hf", "huggingface_hub", r"huggingface_hub\.", counted, 2),
    _rule("docker-pull", "platform", r"The requested image's platform", _platform, 3),
    _rule(
        "docker-pull",
        "copying",
        r"^Copying blob (?:sha256:)?(?P<id>[0-9a-f]{12})[0-9a-f]*\s*(?P<state>done|skipped)?",
        _blob,
        3,
    ),
    _rule("docker-pull", "trying", r"^Trying to pull (?P<image>\S+?)\.\.\.", _podman, 5),
    _rule("docker-pull", "writing", r"^Writing manifest to image destination", _podman_pulled, 3),
    _rule("hf", "downloading", r"Downloading '(?P<file>[^']{1,400})' to '", _hub_vote, 4),
    _rule("hf", "download", r"(?:huggingface-cli|hf) download", counted, 3),
    _rule("hf", "retry", r"Retry after (?P<seconds>\d{1,6}) seconds", _retry_after, 1),
    *(
        _rule("docker-pull", trigger, _LAYER, _layer, 2)
        for trigger in ("complete", "exists", "fs", "waiting", "verifying", "downloading", "extracting", "retrying")
    ),
    _rule("docker-pull", "pulling", r"^(?P<tag>[\w.-]+): Pulling from (?P<repository>\S+)", _pulling, 5),
    _rule(
        "docker-pull",
        "status",
        r"^Status: (?:Downloaded newer image for|Image is up to date for) (?P<image>\S+)",
        _pulled,
        5,
    ),
)


# Exit codes of rsync(1) that tell what happened; the others only that it did.
_CODES = {
    10: "connection_lost",
    12: "connection_lost",
    30: "connection_lost",
    35: "connection_lost",
    255: "connection_lost",
}
_CODES |= {23: "partial_copy", 24: "partial_copy"}


def _code(match: Found) -> dict[str, object]:
    code = number(match["code"])
    return {"code": code, "cause": _CODES.get(code, "copy_interrupted")}


SIGNS: tuple[Sign, ...] = (
    Sign(
        "space",
        re.compile(r"^rsync: .*(?:write failed|mkdir|mkstemp|ftruncate|receiver).*No space left on device"),
        "disk_full",
        cause="disk_full_on_target",
        kind="rsync",
    ),
    Sign(
        "register",
        re.compile(r"failed to register layer: .*no space left on device"),
        "disk_full",
        kind="docker-pull",
        values={"error": "disk_full"},
    ),
    Sign("space", re.compile(r"(?i)no space left on device(?! \(28\)$)(?!.{0,80}/dev/shm)"), "disk_full"),
    Sign("quota", re.compile(r"Disk quota exceeded"), "disk_full"),
    Sign(
        "link_stat change_dir",
        re.compile(
            r"^rsync: .*(?:link_stat|change_dir\S*) \"(?P<path>[^\"]{1,400})\"(?: \(in \S+\))? failed: No such file"
        ),
        "model_path_missing",
        cause="source_missing",
        kind="rsync",
        extract=lambda match: {"path": match["path"]},
    ),
    Sign(
        "clean",
        re.compile(r"is your shell clean\?"),
        "bad_answer",
        cause="shell_not_clean",
        kind="rsync",
    ),
    Sign(
        "option",
        re.compile(r"^rsync: .*unknown option"),
        "bad_args",
        cause="usage_error",
        kind="rsync",
    ),
    Sign(
        "sigint",
        re.compile(r"^rsync error: received SIGINT, SIGTERM, or SIGHUP"),
        "copy_interrupted",
        EFFECT,
        cause="interrupted",
        kind="rsync",
    ),
    Sign(
        "denied",
        re.compile(r"^rsync: .*Permission denied \(13\)"),
        "permission_denied",
        cause="permission_denied_on_target",
        kind="rsync",
    ),
    Sign(
        "rsync",
        re.compile(r"rsync: (?:command )?not found"),
        "program_missing",
        cause="rsync_missing_on_target",
        kind="rsync",
    ),
    Sign(
        "closed",
        re.compile(r"^rsync(?: error)?: connection unexpectedly closed"),
        "copy_interrupted",
        EFFECT,
        cause="connection_lost",
        kind="rsync",
    ),
    Sign(
        "timeout",
        re.compile(r"^rsync error: timeout in data send/receive|^\[\w+\] io timeout after"),
        "copy_interrupted",
        EFFECT,
        cause="connection_lost",
        kind="rsync",
    ),
    Sign(
        "code",
        re.compile(r"^rsync error: .*\(code (?P<code>\d+)\)"),
        "copy_interrupted",
        1,
        kind="rsync",
        extract=_code,
    ),
    Sign(
        "pull",
        re.compile(r"pull access denied for (?P<image>\S+?),"),
        "image_not_found",
        kind="docker-pull",
        extract=lambda match: {"image": match["image"]},
    ),
    Sign("toomanyrequests", re.compile(r"toomanyrequests"), "image_pull", kind="docker-pull"),
    Sign(
        "authentication auth",
        re.compile(r"unauthorized: authentication required|no basic auth credentials"),
        "image_pull",
        kind="docker-pull",
        values={"cause": "registry_login"},
    ),
    Sign(
        "daemon",
        re.compile(
            r"[Ee]rror response from daemon: .{0,200}?(?:Get|Head) \"?https?://\S+\"?: .*"
            r"(?:[Tt]imeout|no such host|refused|EOF|unreachable|server misbehaving|no route|reset by peer|x509)"
        ),
        "image_pull",
        kind="docker-pull",
    ),
    Sign(
        "daemon",
        re.compile(r"[Ee]rror response from daemon: (?:unauthorized|denied)\b"),
        "image_pull",
        kind="docker-pull",
        values={"cause": "registry_login"},
    ),
    Sign(
        "image",
        re.compile(r"error pulling image(?: configuration)?: .*(?:EOF|timeout|reset|refused|download failed)"),
        "image_pull",
        kind="docker-pull",
    ),
)

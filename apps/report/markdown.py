"""A report as Markdown, for people and for tools that read text. Pure: out of the JSON alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

LONGEST = 300  # characters of a cell
GIB = 1 << 30
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def text(value: Any, most: int = LONGEST) -> str:
    """One line in which nothing is markup; unknown for None."""
    if value is None or value == "":
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    words = " ".join(str(value).split())
    words = words if len(words) <= most else f"{words[: most - 1]}…"
    return _SPECIAL.sub(r"\\\1", words)


def code(value: Any) -> str:
    """As code, whatever backticks are in it."""
    words = " ".join(str(value).split()).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", words)), default=0) + 1)
    pad = " " if words.startswith("`") or words.endswith("`") else ""
    return f"{fence}{pad}{words}{pad}{fence}"


def age(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    for size, word in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            count = round(seconds / size)
            return f"{count} {word}{'s' if count != 1 else ''}"
    return f"{round(seconds)} s"


def size(value: int | None) -> str:
    if value is None:
        return "unknown"
    for unit, each in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= each:
            return f"{value / each:.1f} {unit}"
    return f"{value} B"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join(' --- ' for _ in heads)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def of(report: dict[str, Any]) -> str:
    """The whole report."""
    about = report["name"] or "the fleet"
    lines = [f"# State of {text(about)}", "", f"Made {report['made']} by sparkweb. Times are UTC.", ""]
    lines += [f"- {text(sentence, 1000)}" for sentence in report["summary"]]
    lines += ["", "## Open problems", ""]
    lines += _problems(report["problems"], "None that is known.")
    lines += ["## What runs where", ""]
    for one in report["deployments"]:
        lines += _deployment(one)
    if not report["deployments"]:
        lines += ["No deployment.", ""]
    lines += ["## Known limitations", ""]
    lines += _problems(report["limitations"], "None that is known.")
    lines += ["## Decisions", ""]
    lines += _decisions(report["decisions"])
    lines += ["## Nodes", ""]
    for node in report["nodes"]:
        lines += _node(node)
    if not report["nodes"]:
        lines += ["No node.", ""]
    if report["left_out"]:
        lines += ["## Left out", "", *(f"- {text(one, 1000)}" for one in report["left_out"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _problems(rows: Sequence[dict[str, Any]], nothing: str) -> Iterator[str]:
    if not rows:
        yield nothing
    for row in rows:
        where = f" ({text(', '.join(row['nodes']))})" if row["nodes"] else ""
        yield f"- **{text(row['title'])}**{where}: {text(' '.join(row['said']), 1000) if row['said'] else row['severity']}"
        if row["means"]:
            yield f"  {text(row['means'], 1000)}"
        if row["remedy"]:
            yield f"  To do: {text(row['remedy'], 1000)}"
    yield ""


def _deployment(one: dict[str, Any]) -> Iterator[str]:
    yield f"### {text(one['name'])}"
    yield ""
    why = f", {text(one['reason'])}" if one["reason"] else ""
    yield f"{text(one['state'])}{why} since {one['since']}. {text(one['said'], 1000) if one['said'] else ''}".rstrip()
    yield ""
    for each in one["services"]:
        yield from _service(each)
    if one["ranks"]:
        heads = ("Rank", "Node", "State", "What", "Revision", "Run")
        yield from table(
            heads,
            (
                (
                    str(rank["rank"]),
                    text(rank["node"]),
                    rank["state"],
                    text(rank["container"] or rank["unit"] or rank["job"]),
                    str(rank["revision"]),
                    str(rank["run"]),
                )
                for rank in one["ranks"]
            ),
        )
    launch = one["launch"]
    if launch:
        why = f" “{text(launch['reason'])}”" if launch["reason"] else ""
        yield f"Last good launch: run {launch['run']} by {text(launch['by'])}, ended {launch['ended'] or 'unknown'}{why}."
        yield ""
    revision = one["revision"]
    yield f"Revision {revision['newest']} is wanted, {revision['running'] or 'none'} runs."
    yield ""
    for each in revision["history"]:
        why = text(each["reason"]) if each["reason"] else "no reason given"
        yield f"- revision {each['number']}, {each['made']}, {text(each['by'])}: {why}"
    yield ""
    if one["benchmarks"]:
        yield from table(
            ("Benchmark", "Made", "Concurrency: tokens/s, first token", "Known good"),
            (
                (
                    text(row["name"]),
                    text(row["made"]),
                    "; ".join(
                        f"{level['concurrency']}: {level['aggregate_tok_s']:.4g}"
                        + (f", {level['ttft_s']:.3g} s" if level["ttft_s"] is not None else "")
                        for level in row["levels"]
                    ),
                    "yes" if row["good"] else "",
                )
                for row in one["benchmarks"]
            ),
        )
    if one["settings"]:
        yield from table(
            ("Setting", "Passed", "Whose", "Why"),
            (
                (
                    code(row["name"]),
                    code(row["effective"]) if row["effective"] else "left out",
                    text(row["source"] + (f", {', '.join(row['nodes'])}" if row["nodes"] else "")),
                    text(row["reason"]),
                )
                for row in one["settings"]
            ),
        )


def _service(one: dict[str, Any]) -> Iterator[str]:
    name = one["service"] or one["kind"]
    versions = ", ".join(f"{key} {value}" for key, value in one["versions"].items())
    endpoint = one["endpoint"]
    said = {
        "Model": text(one["model"]) + (f" at {code(one['model_path'])}" if one["model_path"] else ""),
        "Engine": text(" · ".join(str(part) for part in (one["engine"], one["runtime"], one["cluster"]) if part)),
        "Image": code(one["image"]) if one["image"] else "",
        "Program": code(one["executable"]) if one["executable"] else "",
        "Versions": text(versions) if versions else "unknown",
        "Nodes": text(", ".join(one["nodes"])),
        "Tensor parallel": text(one["tensor_parallel"]),
        "GPU memory": text(one["gpu_memory_utilization"]) if one["gpu_memory_utilization"] else "",
        "Longest context": f"{one['max_model_len']} tokens" if one["max_model_len"] else "",
        "Arguments": code(one["arguments"]) if one["arguments"] else "",
        "Environment": ", ".join(code(pair) for pair in one["environment"]),
        "Secrets, by name": text(", ".join(one["secrets"])) if one["secrets"] else "",
        "Endpoint": code(endpoint["url"]) if endpoint else "nothing answers",
        "Reached by": code(endpoint["tunnel"]) if endpoint and endpoint["tunnel"] else "",
        "First request": text((one["proof"] or {}).get("verdict")) if one["proof"] else "",
    }
    yield f"**{text(name)}** ({text(one['state'])})"
    yield ""
    yield from (f"- {key}: {value}" for key, value in said.items() if value)
    yield ""


def _decisions(rows: Sequence[dict[str, Any]] | None) -> Iterator[str]:
    if rows is None:
        yield "Not shown to this role."
        yield ""
        return
    if not rows:
        yield "Nobody has given a reason for anything yet."
        yield ""
        return
    yield from table(
        ("Time", "Who", "Act", "On", "Outcome", "Reason"),
        (
            (
                row["time"],
                text(row["by"]),
                code(row["act"]),
                text(row["object"]["name"] or row["object"]["type"]) if row["object"]["type"] else "",
                row["outcome"],
                text(row["reason"]),
            )
            for row in rows
        ),
    )


def _node(one: dict[str, Any]) -> Iterator[str]:
    yield f"### {text(one['name'])}"
    yield ""
    via = f" through {text(one['via'])}" if one["via"] else ""
    yield f"{text(one['state'])}; {code(one['user'] + '@' + one['address'])} port {one['port']}{via}."
    yield ""
    facts = one["facts"]
    if facts is None:
        yield "No facts: it has never been probed."
    else:
        yield f"Facts of {facts['taken_at']}, {age(facts['age_s'])} old:"
        yield ""
        yield from (f"- {row['name']}: {text(row['value'])}" for row in facts["rows"])
    yield ""
    if one["files"]:
        yield from table(
            ("Kind", "Where", "Size", "About", "Ours"),
            (
                (
                    row["kind"],
                    code(row["where"]) if row["where"] else "",
                    size(row["bytes"]) if row["bytes"] is not None else "",
                    text(row["about"]) if row["about"] else "",
                    "yes" if row["ours"] else "",
                )
                for row in one["files"]
            ),
        )

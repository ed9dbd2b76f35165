"""Whatever comes, no parser raises; a cut, a \\r\\n or a foreign byte is no exception."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.facts import parsing, probe
from apps.facts.fact import FACTS
from apps.facts.sheet import Evidence, Sheet

CASES = Path(__file__).resolve().parent.parent / "cases"
INPUTS = {path: path.read_bytes() for path in sorted(CASES.glob("0[0-5]*/input*"))}
NAMES = sorted(parsing.names())
WORDS = [
    "MemTotal: 1 kB\n", "Mem: 1 2 3 4 5 6\n", "|   0  NVIDIA GB10  On  |   0000000F:01:00.0 Off | N/A |\n", "| N/A 41C P8 4W / N/A | 1MiB / 2MiB | 0% |\n",
    "MIG devices:\n", "|  0    1   0   0  |  107MiB / 40192MiB |\n", "Processes:\n", "|    0   N/A  N/A   2790   G   x   179MiB |\n", "index, name\n", "0, a\n",
    "/dev/a 1 2 3 4% /\n", "Filesystem 1024-blocks\n", '{"Names":"a","Labels":"x=,y="}\n', '{"Names":1,"State":[]}\n', '[{"State":{"Pid":"x"}}]\n', "[[[", '{"a":',
    "@port a 1\tstate=4: ACTIVE\tgids=1/x;\n", "@folder a\n", "12\ta-00001-of-99999.gguf\n", "@expected b\n", "|{\n", "@in x\ty\n", "vllm==1\n", "@file u\tp\n",
    "|docker run --name x\n", "Id=a\n", "ExecStart={ argv[]=docker start 'x ; ignore_errors=no }\n", "\n", "default via 1 dev x metric 1\n", "1: lo inet 1.2.3.4/99\n",
    '[{"ifname":"x","addr_info":[{"local":"::1%1","prefixlen":"a"}],"flags":null}]\n', "LISTEN 0 1 *:99999 *:* users:((\"x\",pid=1))\n", "CA 'x'\n\tPort 1:\n\t\tRate: ²\n",
    "x 4: ACTIVE 5: LinkUp 1.2.3 Gb/sec\n", "======== Autoscaler status: x\n", "Node status\n", "Active:\n",
    "@crontab a\n", "@file /etc/rc.local\n", "@reboot vllm serve '$\n", "@rail a b\n", "PING x 8972(9000) bytes\n", "@small\n", "2 packets transmitted, 0 received\n", "@script /a\n", "@checkout /a\n", "commit\tabc x\n",
    "|docker run -p 1:2 vllm/x a/b && vllm serve '$X\n", "|services:\n", "|  a:\n", "|    image: vllm/x\n", "|    command: [\n", "|      - --port\n",
    "PID PPID USER ELAPSED RSS COMMAND\n", "1 1 a 5 5 vllm serve m --port 99999 -tp x\n", "2 1 a 1-1:1:1 5G python3 -m\n", "@of 1\tcgroup\tdocker-\n", "@now x\n",
    "MaxSessions ²\n", "MaxStartups 1:\n", "Match User x\n", "@files\n", "@effective\n", "NVRM: Xid (PCI:0000:01:00): 79,\n", "GPU 0: x (UUID: y)\n", "  MIG 1g  Device 0: (UUID: z)\n",
    "@pci 0000:01:00.0 nvidia\n", "a/memory.current:1\n", "a\t1\t2\t3\n", "Offset: -1.2.3ms\n", "System time : 1..2 seconds fast of NTP time\n", "NTP=yes\n",
    " 1 x\n", "Total Usage:\n", " 1/2 GPU\n", "²³٣", "�", "\0", "sudo\t(ALL) NOPASSWD: ALL\n",
]  # fmt: skip
salad = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=20)), max_size=12).map("".join)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(name: str, data: bytes) -> object:
    out = io.StringIO()
    assert parsing.main([name], io.BytesIO(data), out) == 0
    return json.loads(out.getvalue())


def honest(value: object) -> bool:
    """No parser had to be rescued."""
    several = value if isinstance(value, list) else [value]
    return all(not (isinstance(each, dict) and each.get("problem") == "internal") for each in several)


@pytest.mark.parametrize("name", NAMES)
@quick
@given(text=salad)
def test_any_text(name: str, text: str) -> None:
    assert honest(run(name, text.encode("utf-8", "replace")))


@quick
@given(name=st.sampled_from(NAMES), data=st.binary(max_size=300))
def test_any_bytes(name: str, data: bytes) -> None:
    assert honest(run(name, data))


@quick
@given(name=st.sampled_from(sorted(FACTS)), out=salad, err=salad, code=st.one_of(st.none(), st.integers(0, 255)))
def test_any_evidence(name: str, out: str, err: str, code: int | None) -> None:
    FACTS[name].parse(Evidence(out, err, code))


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.parent.name + "/" + path.name)
@quick
@given(data=st.data())
def test_a_cut_at_any_byte(path: Path, data: st.DataObject) -> None:
    body = INPUTS[path]
    at = data.draw(st.integers(0, len(body)))
    for name in ("gpu", "memory", "disk", "docker", "systemd", "network", "ray"):
        assert honest(run(name, body[:at]))


@pytest.mark.parametrize("path", [path for path in INPUTS if path.suffix == ".txt"], ids=lambda path: path.parent.name)
@pytest.mark.parametrize("name", ["gpu", "memory", "disk", "docker", "systemd", "network", "ray"])
def test_carriage_returns_change_nothing(path: Path, name: str) -> None:
    body = INPUTS[path]
    assert run(name, body.replace(b"\n", b"\r\n")) == run(name, body)


@quick
@given(
    sections=st.dictionaries(
        st.sampled_from(sorted(FACTS)),
        st.builds(Evidence, stdout=salad, stderr=salad, exit_code=st.sampled_from([0, 1, 127, None])),
        max_size=12,
    )
)
def test_a_sheet_of_anything_survives_json(sections: dict[str, Evidence]) -> None:
    sheet = probe.sheet_from("n", 1.5, sections)
    body = json.loads(json.dumps(sheet.to_json()))
    back = Sheet.from_json(body)
    assert back.to_json() == body
    if "\0" not in json.dumps(body) and "\\u0000" not in json.dumps(sheet.evidence.keys().__repr__()):
        assert Sheet.from_json(back.to_json()) == back


@quick
@given(data=st.binary(max_size=400), nonce=st.just("0123456789abcdef"))
def test_any_answer_of_a_node(data: bytes, nonce: str) -> None:
    mark = nonce.encode()
    assert probe.read(nonce, data) == {}
    noisy = b"\n" + mark + b" begin\n" + data.replace(b"X", b"\n" + mark + b" ")
    probe.read(nonce, noisy)


def test_separators_give_an_array_for_any_size_of_block() -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(3)

    body = INPUTS[CASES / "003-gb10-query-gpu-csv-na" / "input.txt"]
    slow, fast = io.StringIO(), io.StringIO()
    parsing.write("gpu", Slow(body), slow)
    parsing.write("gpu", io.BytesIO(body), fast)
    assert slow.getvalue() == fast.getvalue()
    assert len(json.loads(fast.getvalue())) == 3


def test_a_separator_first_counts_for_nothing() -> None:
    told = run("memory", b"---8<--- one\nMemTotal: 1024 kB\n---8<---\nMemTotal: 2048 kB\n")
    assert isinstance(told, list) and [each["total_gib"] for each in told] == [0.0, 0.0]
    assert run("memory", b"---8<---\nMemTotal: 1048576 kB\n") == [run("memory", b"MemTotal: 1048576 kB\n")]


def test_a_huge_text_keeps_its_first_and_last_part() -> None:
    body = b"MemTotal: 1048576 kB\n" + b"x" * 99 * 1000 + b"\n" * 100
    told = run(
        "memory",
        b"MemTotal: 1048576 kB\n" + (b"y" * 999 + b"\n") * 8000 + b"systemd-oomd[1]: Killed /a/b.scope due to x\n",
    )
    assert (
        isinstance(told, dict) and told["truncated"] and told["total_gib"] == 1.0 and told["killed_unit"] == "b.scope"
    )
    assert "truncated" not in run("memory", body)  # type: ignore[operator]


@pytest.mark.parametrize(("one", "most"), [(b"x", "MOST_INPUTS"), (b"y" * 50_000, "MOST_BYTES")])
def test_of_too_many_inputs_the_first_are_read(one: bytes, most: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "MOST_INPUTS", 120)
    monkeypatch.setattr(parsing, "MOST_BYTES", 2_000_000)
    many = one + (b"\n---8<---\n" + one) * 300
    told = run("memory", many)
    assert isinstance(told, list) and told[-1]["problem"] == "too_many_inputs"
    read = 120 if most == "MOST_INPUTS" else -(-parsing.MOST_BYTES // 50_000)
    assert len(told) == min(read, 120) + 1 and {each["problem"] for each in told[:-1]} == {"unreadable"}
    assert f"first {min(read, 120)} " in told[-1]["evidence"]


def test_unknown_fact_and_unreadable_file() -> None:
    errors = io.StringIO()
    assert parsing.main(["gpus"], io.BytesIO(), io.StringIO(), errors) == 2
    assert parsing.main(["gpu", "/nowhere/at/all"], io.BytesIO(), io.StringIO(), errors) == 2
    assert "parse --list" in errors.getvalue() and "/nowhere/at/all" in errors.getvalue()


def test_the_list_names_what_each_fact_reads() -> None:
    out = io.StringIO()
    assert parsing.main(["--list"], io.BytesIO(), out) == 0
    rows = dict(line.split("\t") for line in out.getvalue().splitlines())
    assert set(FACTS) <= set(rows) and rows["gpu"].startswith("nvidia-smi")

"""What is asked of any Linux: memory, ports, the page cache, one process."""

from __future__ import annotations

from apps.shell import Command, Shell, either, forgiving, pipe, quiet, say, script, when


def memory() -> Command:
    """MemTotal, MemFree and MemAvailable, in kB."""
    return Command.of("grep", "-E", "^(MemTotal|MemFree|MemAvailable):", "/proc/meminfo")


def listening() -> Shell:
    """Listening TCP sockets: by ss, else the kernel's own tables."""
    return either(Command.of("ss", "-H", "-ltn"), Command.of("cat", "/proc/net/tcp", "/proc/net/tcp6"))


def reaches(interface: str, address: str) -> Shell:
    """One echo over this interface; where that is not answered, what the link knows of the address: a machine that answers no
    echo is there all the same when its hardware address was told a moment ago."""
    return either(
        Command.of("ping", "-c", "1", "-W", "2", "-I", interface, address),
        Command.of("ip", "neigh", "show", address, "dev", interface),
    )


def drop_page_cache(*, root: bool) -> Shell:
    """Write the page cache back and drop it, showing MemFree before and after; a refusal is said and is no failure,
    because the launch only has less room. The words after sudo are the one line that a sudoers file may allow."""
    tee = Command.of(*(() if root else ("sudo", "-n")), "/usr/bin/tee", "/proc/sys/vm/drop_caches")
    free = Command.of("grep", "-E", "^MemFree:", "/proc/meminfo")
    return script(
        forgiving(free),
        Command.of("sync"),
        when(
            Shell(pipe(Command.of("echo", "3"), tee).text + " >/dev/null"),
            forgiving(free),
            say("the page cache was not dropped: this user may not write /proc/sys/vm/drop_caches"),
        ),
    )


def drop_page_cache_shown(*, root: bool) -> str:
    """The same as a person would type it."""
    return "sync; echo 3 | " + ("" if root else "sudo -n ") + "/usr/bin/tee /proc/sys/vm/drop_caches"


def end_process(pid: int) -> Shell:
    """TERM, up to 20 s of grace, then KILL; a process that is gone already is fine."""
    number = str(int(pid))
    alive = Command.of("test", "-d", f"/proc/{number}")
    grace = Shell(f'left=20\nwhile {alive.text} && [ "$left" -gt 0 ]; do\nsleep 1\nleft=$((left - 1))\ndone')
    return script(
        when(
            alive,
            Shell(
                "\n".join(
                    (
                        Command.of("kill", "-TERM", number).text,
                        grace.text,
                        f"{quiet(Command.of('kill', '-KILL', number)).text} || :",
                    )
                )
            ),
            say(f"process {number} is gone already"),
        )
    )

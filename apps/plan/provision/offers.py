"""The steps of a provision run on one node, from its sheet: what is done, or why there is nothing to do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apps.facts.sheet import Sheet
from apps.facts.values import Setup
from apps.plan import steps
from apps.plan.provision import scripts, texts
from apps.plan.provision.wish import BY_NAME, Place, Wish
from apps.plan.step import Step
from apps.shell import Secret

USER_BASE = "$HOME/.local/state/sparkweb"
ROOT, FREE, PASSWORD, NONE = "root", "free", "password", "none"


def once(kind: str, node: str) -> str:
    """The name of a password that is given for one run and forgotten with it. kind: login or sudo."""
    return f"once:{kind}:{node}"


def rights(sheet: Sheet) -> str:
    """How root is reached: root, free (sudo asks nothing), password, none. Unknown counts as free: sudo will say."""
    if sheet.machine and sheet.machine.uid == 0:
        return ROOT
    scope = sheet.privileges.sudo if sheet.privileges else None
    return {"all": FREE, "some": PASSWORD, "password": PASSWORD, "none": NONE}.get(scope or "", FREE)


@dataclass(frozen=True)
class Here:
    """One node with what a step has to know of it."""

    node: str
    sheet: Sheet
    wish: Wish
    because: Mapping[str, str]  # offer -> the finding's sentence

    @property
    def user(self) -> str:
        return (self.sheet.machine.user if self.sheet.machine else None) or ""

    @property
    def home(self) -> str:
        return (self.sheet.machine.home if self.sheet.machine else None) or f"/home/{self.user}"

    @property
    def setup(self) -> Setup:
        return self.sheet.setup or Setup()

    @property
    def secrets(self) -> tuple[Secret, ...]:
        if rights(self.sheet) != PASSWORD:
            return ()
        return (Secret(scripts.SUDO_VARIABLE, once("sudo", self.node)),)

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(one for one in self.wish.places if one.node == self.node)

    def holds(self, path: str, content: str) -> bool:
        return self.setup.files.get(path) == digest(content)


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _done(here: Here, name: str, why: str) -> Step:
    return steps.note(
        f"provision.{name}.{here.node}", here.node, BY_NAME[name].title, why=f"nothing to do, because {why}"
    )


def _not_done(here: Here, name: str, why: str) -> Step:
    return steps.note(f"provision.{name}.{here.node}", here.node, BY_NAME[name].title, why=f"not done: {why}")


def root_step(
    here: Here, name: str, text: str, values: Mapping[str, str], *, lead: str = "", within_s: float = 120.0
) -> Step:
    """A step that runs as root, with its undo; a note where this user can't become root."""
    offer = BY_NAME[name]
    if rights(here.sheet) == NONE:
        return _not_done(here, name, f"{here.user or 'this user'} may not use sudo on {here.node}; it is used as it is")
    whole = scripts.body(name, text, values)
    return steps.job(
        f"provision.{name}.{here.node}",
        here.node,
        offer.title,
        scripts.as_root(whole, lead=lead),
        shown=(f"# as root\n{whole}",),
        why="; ".join(filter(None, (here.because.get(name, ""), offer.about))),
        secrets=here.secrets,
        undo={"node": here.node, "provision": name, "values": dict(values)},
        within_s=within_s,
    )


def docker(here: Here) -> Step:
    about = here.sheet.docker
    if here.sheet.machine and here.sheet.machine.uid == 0:
        return _done(here, "docker", "root needs no group to use Docker")
    if here.user in (here.setup.docker_members or ()) or (here.sheet.privileges and here.sheet.privileges.docker_group):
        return _done(here, "docker", f"{here.user} is in the group docker")
    if about is not None and not about.present and about.problem in (None, "docker_missing"):
        return _not_done(here, "docker", "Docker is not installed on this node")
    return root_step(here, "docker", scripts.DOCKER, {"user": here.user})


def toolkit(here: Here) -> Step:
    about = here.sheet.docker
    if about is not None and "nvidia" in about.runtimes:
        return _done(here, "toolkit", "Docker knows the runtime nvidia")
    if about is not None and not about.present and about.problem in (None, "docker_missing"):
        return _not_done(here, "toolkit", "Docker is not installed on this node")
    if here.sheet.setup is not None and "nvidia-ctk" not in here.setup.tools:
        return _not_done(here, "toolkit", "nvidia-ctk is not there; install the package nvidia-container-toolkit")
    return root_step(here, "toolkit", scripts.TOOLKIT, {})


def linger(here: Here) -> Step:
    known = here.sheet.privileges
    if here.sheet.machine and here.sheet.machine.uid == 0:
        return _done(here, "linger", "logind leaves root's shared memory alone")
    if here.setup.lingers or (known and known.linger):
        return _done(here, "linger", f"{here.user} lingers")
    if known and known.remove_ipc is False:
        return _done(here, "linger", "RemoveIPC is off on this node")
    return root_step(here, "linger", scripts.LINGER, {"user": here.user})


def limits(here: Here) -> Step:
    content, known = texts.limits(here.user), here.sheet.privileges
    if here.holds(texts.LIMITS_FILE, content):
        return _done(here, "limits", f"{texts.LIMITS_FILE} says so already")
    files = known.open_files if known else None
    if known and known.memlock_bytes == -1 and files is not None and (files == -1 or files >= texts.OPEN_FILES):
        return _done(here, "limits", "this login may lock any memory and open that many files")
    return root_step(here, "limits", scripts.LIMITS, {"file": texts.LIMITS_FILE, "content": content})


def clock(here: Here) -> Step:
    if here.setup.ntp:
        return _done(here, "clock", "time synchronisation is on")
    return root_step(here, "clock", scripts.CLOCK, {})


def folders(here: Here) -> Step:
    wanted = (here.wish.models, f"{here.home}/.cache/huggingface")
    mine = {one.path for one in here.setup.folders if one.owner == here.user}
    if mine.issuperset(wanted):
        return _done(here, "folders", f"{wanted[0]} and {wanted[1]} are there and belong to {here.user}{_room(here)}")
    values = {"models": here.wish.models, "home": here.home, "user": here.user}
    return root_step(here, "folders", scripts.FOLDERS, values)


def _room(here: Here) -> str:
    disks = [one for one in here.sheet.disks or () if here.wish.models.startswith(one.mount) and one.available_bytes]
    best = max(disks, key=lambda one: len(one.mount), default=None)
    return f"; {(best.available_bytes or 0) / 1e9:.0f} GB are free there" if best else ""


def sudoers(here: Here) -> Step:
    how = rights(here.sheet)
    if how == ROOT:
        return _done(here, "sudoers", "this user is root")
    known = here.sheet.privileges
    if known and known.sudo == "all":
        return _done(here, "sudoers", f"{here.user} may use sudo for everything without a password")
    file, content = texts.sudoers_file(here.user), sudoers_text(here)
    if here.holds(f"{scripts.ROOT_BASE}/marks/sudoers", digest(content) + "\n") and known and known.sudo == "some":
        return _done(here, "sudoers", f"{file} says exactly this")
    return root_step(here, "sudoers", scripts.SUDOERS, {"file": file, "content": content})


def sudoers_text(here: Here) -> str:
    units = [unit for node, unit in here.wish.units if node == here.node]
    carrying = {one.interface for one in here.places} or {
        one.name for one in here.sheet.interfaces or () if one.role == "fabric"
    }
    return texts.sudoers(here.user, units=units, interfaces=sorted(carrying))


def earlyoom(here: Here) -> Step:
    if here.setup.units.get("earlyoom.service") == "active":
        return _done(here, "earlyoom", "earlyoom runs")
    lead = internet_through(here) if "earlyoom" not in here.setup.tools else ""
    return root_step(
        here, "earlyoom", scripts.EARLYOOM, {"content": texts.EARLYOOM, "proxy": PROXY if lead else ""}, lead=lead,
        within_s=600.0,
    )  # fmt: skip


PROXY_PORT = 11080
PROXY = (
    f"-oAcquire::http::Proxy=socks5h://127.0.0.1:{PROXY_PORT} -oAcquire::https::Proxy=socks5h://127.0.0.1:{PROXY_PORT}"
)


def internet_through(here: Here) -> str:
    """A proxy over SSH through the node that has internet, a child of this job: it ends with the job, whatever becomes of
    us. Needs the key of `peers`. Empty where it was not asked for or is not needed."""
    head = here.wish.internet
    if not head or head == here.node or here.sheet.internet is not False:
        return ""
    return scripts.PROXY_LEAD.format(port=PROXY_PORT, target=f"{here.user}@{_address_of(here.wish, head)}")


def _address_of(wish: Wish, node: str) -> str:
    return next((one.address for one in wish.places if one.node == node), node)


def gpuclock(here: Here) -> Step:
    content = texts.gpu_clock(here.wish.clock_mhz)
    if here.holds(texts.CLOCK_FILE, content) and here.setup.units.get(texts.CLOCK_UNIT) == "active":
        return _done(here, "gpuclock", f"{texts.CLOCK_UNIT} caps it at {here.wish.clock_mhz} MHz")
    values = {"file": texts.CLOCK_FILE, "unit": texts.CLOCK_UNIT, "content": content}
    return root_step(here, "gpuclock", scripts.GPUCLOCK, values)


SYSTEM: tuple[tuple[str, Callable[[Here], Step]], ...] = (
    ("docker", docker),
    ("toolkit", toolkit),
    ("linger", linger),
    ("limits", limits),
    ("clock", clock),
    ("folders", folders),
    ("gpuclock", gpuclock),
    ("sudoers", sudoers),
)


def system(here: Here) -> Iterator[Step]:
    """Everything of one node that needs no other, in order; what was not ticked is left out."""
    for name, make in SYSTEM:
        if here.wish.ticked(here.node, name):
            yield make(here)


BACK: dict[str, dict[str, Any]] = {
    "docker": {"after": scripts.DOCKER_BACK},
    "toolkit": {"after": scripts.TOOLKIT_BACK},
    "linger": {"after": scripts.LINGER_BACK},
    "limits": {},
    "clock": {"after": scripts.CLOCK_BACK},
    "folders": {"after": scripts.FOLDERS_BACK},
    "sudoers": {},
    "gpuclock": {"before": scripts.GPUCLOCK_BEFORE, "after": scripts.GPUCLOCK_BACK},
    "earlyoom": {"after": scripts.EARLYOOM_BACK},
    "fabric": {"after": scripts.FABRIC_BACK},
}
KEPT_VALUES = {"user", "unit", "state"}  # of a step's values, what its way back needs


def look(node: str) -> Step:
    """A sheet over a new login."""
    return Step(
        key=f"look.{node}",
        node=node,
        title=f"Look at {node} again",
        kind="probe",
        gate={"name": "sheet", "fresh": True},
        within_s=60.0,
        why="over a new login, so that new groups and limits count",
    )


def back(undo: Mapping[str, Any], sheet: Sheet | None, wish: Wish) -> Step:
    """The way back of one step of an earlier run: `undo` is its undo with the `code` of that run."""
    node, name, code = str(undo["node"]), str(undo["provision"]), str(undo["code"])
    here = Here(node, sheet or Sheet(node, 0.0), wish, {})
    values = {key: str(value) for key, value in undo.get("values", {}).items() if key in KEPT_VALUES}
    key = f"restore.{name}-{code}.{node}"
    if name == "key":
        whole = scripts.key_back(str(undo.get("values", {}).get("line", "")))
        return steps.job(key, node, "Take our public key out", scripts.as_user(whole), shown=(whole,), why="asked for")
    title = f"Back: {BY_NAME[name].title}"
    if name == "peers":
        whole = scripts.back_body(name, code, values, before=scripts.PEERS_BACK, base=USER_BASE)
        return steps.job(key, node, title, scripts.as_user(whole), shown=(whole,), why="from what was recorded")
    if rights(here.sheet) == NONE:
        return steps.note(key, node, title, why=f"not done: this user may not use sudo on {node}")
    whole = scripts.back_body(name, code, values, **BACK[name])
    return steps.job(
        key,
        node,
        title,
        scripts.as_root(whole),
        shown=(f"# as root\n{whole}",),
        why="from what was recorded on the node before the change; refuses what somebody else changed since",
        secrets=here.secrets,
        within_s=300.0,
    )

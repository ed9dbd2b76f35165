"""What people do to nodes and credentials. Rows only: whatever needs SSH is a run, done by a worker."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from apps.audit import record
from apps.audit.actor import Actor
from apps.diagnosis.refusal import Refused
from apps.doorbell.ring import ring_on_commit
from apps.facts.sheet import Sheet, storable
from apps.inventory import sealing
from apps.inventory.models import Credential, HostKey, Node, Secret, SheetRow
from apps.remote.transport import Endpoint

KEY_CONTEXT = "inventory.credential.private_key"
SECRET_CONTEXT = "inventory.secret.value"  # noqa: S105 - names the field, is no value
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_%-]{0,253}[A-Za-z0-9])?")
USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}")
MAX_KEY_BYTES = 32 * 1024
SHEETS_KEPT = 50


def bad(field: str, detail: str, remedy: str) -> Refused:
    return Refused("bad_input", detail, field=field, remedy=remedy)


# Credentials and secrets


@transaction.atomic
def make_credential(actor: Actor, *, name: str, private_key: str = "", passphrase: str = "") -> Credential:
    """Make an ed25519 pair, or keep an uploaded private key (OpenSSH or PEM text). Raises Refused naming the field."""
    name = checked_label(name)
    if private_key.strip():
        private, public = _uploaded(private_key, passphrase)
        kind = "uploaded"
    else:
        private, public = _generated()
        kind = "generated"
    public = f"{public} sparkweb:{name.replace(' ', '-')}"
    try:
        with transaction.atomic():
            made = Credential.objects.create(
                name=name,
                kind=kind,
                public_key=public,
                sealed_private_key=sealing.seal(private, context=KEY_CONTEXT),
                created_by=actor.name,
            )
    except IntegrityError:
        raise bad("name", f"A credential called {name} exists.", "Choose another name.") from None
    record(
        actor,
        "credential:added",
        object_type="credential",
        object_id=str(made.pk),
        object_name=name,
        after={"kind": kind, "public": public},
    )
    return made


def checked_label(name: str) -> str:
    name = name.strip()
    if not name or len(name) > 80 or any(ord(character) < 32 for character in name):
        raise bad(
            "name", "The name is empty, too long or holds control characters.", "Give 1 to 80 printable characters."
        )
    return name


def _openssh(key: Any) -> tuple[str, str]:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return private, public


def _generated() -> tuple[str, str]:
    return _openssh(Ed25519PrivateKey.generate())


def _uploaded(text: str, passphrase: str) -> tuple[str, str]:
    data = io.StringIO(text.strip() + "\n", newline=None).read().encode()
    if len(data) > MAX_KEY_BYTES:
        raise bad("private_key", "That is too large for a private key.", "Upload one key, at most 32 KiB.")
    password = passphrase.encode() or None
    load = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in data else load_pem_private_key
    try:
        key = load(data, password=password)
    except (TypeError, ValueError) as problem:
        if "password" in str(problem).lower() or "decrypt" in str(problem).lower():
            raise bad(
                "passphrase", "The key is encrypted and this passphrase does not open it.", "Give its passphrase."
            ) from None
        raise bad(
            "private_key",
            "This is no private key in OpenSSH or PEM form.",
            "Paste the whole file that begins with -----BEGIN … PRIVATE KEY-----, not the .pub file.",
        ) from None
    except Exception:
        raise bad(
            "private_key", "This kind of key is not supported.", "Use ed25519, ECDSA or RSA of 2048 bits or more."
        ) from None
    if (
        isinstance(key, dsa.DSAPrivateKey)
        or not isinstance(key, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
        or (isinstance(key, rsa.RSAPrivateKey) and key.key_size < 2048)
    ):
        raise bad(
            "private_key", "This kind of key is not supported.", "Use ed25519, ECDSA or RSA of 2048 bits or more."
        )
    return _openssh(key)


@transaction.atomic
def keep_secret(actor: Actor, *, name: str, value: str) -> Secret:
    """Store or replace a named secret. The value is never shown again."""
    name = checked_label(name)
    if not value or len(value) > 8192 or "\0" in value or "\n" in value:
        raise bad(
            "value", "The value is empty, longer than 8192 characters, or has a line break.", "Paste the bare token."
        )
    made, new = Secret.objects.update_or_create(
        name=name, defaults={"sealed_value": sealing.seal(value, context=SECRET_CONTEXT)}
    )
    record(
        actor,
        "secret:added" if new else "secret:changed",
        object_type="secret",
        object_id=str(made.pk),
        object_name=name,
    )
    return made


def secret_value(name: str) -> str:
    """For workers only. Raises Refused `secret_missing`."""
    found = Secret.objects.filter(name=name).first()
    if found is None:
        raise Refused("secret_missing", f"There is no secret called {name}.", remedy="Add it under Settings → Secrets.")
    return sealing.unseal(found.sealed_value, context=SECRET_CONTEXT)


# Nodes


def check_node(*, name: str, address: str, port: int | str, user: str, jump: Node | None) -> tuple[str, str, int, str]:
    """Clean the fields of a node. Raises Refused for the first that is wrong."""
    name = name.strip()
    if not NAME.fullmatch(name):
        raise bad("name", f"{name!r} is no node name.", "Use 1 to 63 letters, digits, dots or dashes, e.g. spark-1a32.")
    if Node.objects.filter(name=name).exists():
        raise bad("name", f"A node called {name} exists.", "Choose another name, or open that node.")
    address, number, user = check_door(address=address, port=port, user=user)
    if jump is not None and jump.state != Node.State.READY:
        raise bad(
            "jump", f"The host key of {jump.name} is not confirmed.", "Confirm it first, then add nodes behind it."
        )
    return name, address, number, user


def check_door(*, address: str, port: int | str, user: str) -> tuple[str, int, str]:
    """Clean the fields that say where and as whom we knock. Raises Refused for the first that is wrong."""
    address, user = address.strip(), user.strip()
    if not ADDRESS.fullmatch(address):
        raise bad(
            "address",
            f"{address!r} is no host name or address.",
            "Give a DNS name or an IP address, without user or port.",
        )
    try:
        number = int(port)
    except (TypeError, ValueError):
        number = 0
    if not 0 < number < 65536:
        raise bad("port", f"{port!r} is no port.", "Give a number from 1 to 65535; SSH is usually 22.")
    if not USER.fullmatch(user):
        raise bad("user", f"{user!r} is no user name.", "Give the login name on the node, e.g. aurora.")
    return address, number, user


@transaction.atomic
def add_node(
    actor: Actor,
    *,
    name: str,
    address: str,
    port: int,
    user: str,
    credential: Credential,
    jump: Node | None,
    found: Sequence[Mapping[str, str]],
) -> Node:
    """Store a node with the host keys that a scan found: [{type, base64, sha256}]. It stays unconfirmed until somebody says yes."""
    name, address, port, user = check_node(name=name, address=address, port=port, user=user, jump=jump)
    try:
        with transaction.atomic():
            node = Node.objects.create(
                name=name, address=address, port=port, user=user, credential=credential, jump=jump
            )
    except IntegrityError:
        raise bad("name", f"A node called {name} exists.", "Choose another name.") from None
    for key in found:
        HostKey.objects.create(node=node, type=key["type"], base64=key["base64"], sha256=key["sha256"])
    record(
        actor,
        "node:added",
        object_type="node",
        object_id=str(node.pk),
        object_name=name,
        after={
            "address": address,
            "port": port,
            "user": user,
            "jump": jump.name if jump else None,
            "credential": credential.name,
            "host keys offered": [key["sha256"] for key in found],
        },
    )
    ring_on_commit("fleet", 0)
    return node


@transaction.atomic
def change_node(actor: Actor, node: Node, *, address: str, port: int | str, user: str, reason: str = "") -> Node:
    """The node answers elsewhere now, or for another user. Its pinned host keys stay: another machine there will be refused."""
    address, number, user = check_door(address=address, port=port, user=user)
    before = {"address": node.address, "port": node.port, "user": node.user}
    after = {"address": address, "port": number, "user": user}
    if before != after:
        Node.objects.filter(pk=node.pk).update(**after, version=F("version") + 1)
        record(
            actor,
            "node:changed",
            object_type="node",
            object_id=str(node.pk),
            object_name=node.name,
            reason=reason,
            before=before,
            after=after,
        )
        node.refresh_from_db()
        _news(node)
    return node


@transaction.atomic
def confirm_host_key(actor: Actor, node: Node, *, sha256: str) -> Node:
    """Pin the offered key with this fingerprint; the other offered types stay unpinned. Raises Refused for a fingerprint not seen."""
    wanted = sha256.strip()
    if wanted and not wanted.startswith("SHA256:"):
        wanted = f"SHA256:{wanted}"
    key = node.host_keys.filter(sha256=wanted.rstrip("=")).first()
    if key is None:
        raise Refused(
            "host_key_unknown",
            f"{node.name} did not show a key with the fingerprint {sha256.strip() or '(empty)'}.",
            field="sha256",
            remedy="Compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the node.",
        )
    if node.state == Node.State.STOPPED:
        raise Refused(
            "host_key_changed",
            f"The host key of {node.name} changed.",
            field="sha256",
            status=409,
            remedy="An admin must replace the pinned key, with a reason.",
        )
    if key.state != HostKey.State.PINNED:
        key.state, key.confirmed_at, key.confirmed_by = HostKey.State.PINNED, timezone.now(), actor.name
        key.save()
        record(
            actor,
            "node:host_key_confirmed",
            object_type="node",
            object_id=str(node.pk),
            object_name=node.name,
            after={"type": key.type, "sha256": key.sha256},
        )
    Node.objects.filter(pk=node.pk).update(state=Node.State.READY, version=F("version") + 1)
    node.refresh_from_db()
    _news(node)
    return node


@transaction.atomic
def repin_host_key(actor: Actor, node: Node, *, sha256: str, reason: str) -> Node:
    """Trust another key than before: an admin's act with a reason. The old pins of the same type go."""
    if not reason.strip():
        raise bad(
            "reason", "A new host key needs a reason.", "Say why the key changed, e.g. reinstalled on Monday by Ana."
        )
    wanted = sha256.strip() if sha256.strip().startswith("SHA256:") else f"SHA256:{sha256.strip()}"
    key = node.host_keys.filter(sha256=wanted.rstrip("=")).first()
    if key is None:
        raise Refused(
            "host_key_unknown",
            f"{node.name} did not show a key with this fingerprint.",
            field="sha256",
            remedy="Compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the node.",
        )
    before = list(node.host_keys.filter(state=HostKey.State.PINNED).values_list("sha256", flat=True))
    node.host_keys.filter(state=HostKey.State.PINNED).exclude(pk=key.pk).delete()
    node.host_keys.exclude(pk=key.pk).update(state=HostKey.State.OFFERED)
    HostKey.objects.filter(pk=key.pk).update(
        state=HostKey.State.PINNED, confirmed_at=timezone.now(), confirmed_by=actor.name
    )
    Node.objects.filter(pk=node.pk).update(
        state=Node.State.READY,
        unreachable_since=None,
        unreachable_reason="",
        unreachable_evidence="",
        version=F("version") + 1,
    )
    record(
        actor,
        "node:host_key_replaced",
        object_type="node",
        object_id=str(node.pk),
        object_name=node.name,
        reason=reason,
        before={"sha256": before},
        after={"sha256": key.sha256},
    )
    node.refresh_from_db()
    _news(node)
    return node


@transaction.atomic
def remove_node(actor: Actor, node: Node, *, reason: str = "") -> None:
    """Forget a node that nothing refers to. Raises Refused when deployments, runs or nodes behind it still do."""
    behind = list(node.behind.values_list("name", flat=True))
    if behind:
        raise Refused(
            "in_use",
            f"{', '.join(behind)} can only be reached through {node.name}.",
            status=409,
            remedy="Remove those nodes first.",
        )
    serving = list(node.ranks.order_by("deployment__name").values_list("deployment__name", flat=True).distinct())
    if serving:
        raise Refused(
            "in_use",
            f"{', '.join(serving)} {'has' if len(serving) == 1 else 'have'} ranks on {node.name}.",
            status=409,
            remedy="Stop it first." if len(serving) == 1 else "Stop them first.",
        )
    identity, name = node.pk, node.name
    try:
        with transaction.atomic():
            node.delete()
    except IntegrityError:
        raise Refused(
            "in_use",
            f"A run is at work on {name}.",
            status=409,
            remedy="Wait for it to end, or cancel it.",
        ) from None
    record(actor, "node:removed", object_type="node", object_id=str(identity), object_name=name, reason=reason)
    ring_on_commit("fleet", 0)


def _news(node: Node) -> None:
    ring_on_commit("node", node.pk, node.version)
    ring_on_commit("fleet", 0)


# For workers


def endpoint(node: Node) -> Endpoint:
    """How a worker reaches the node: keys unsealed, pinned host keys of every hop. Raises Refused for an unconfirmed or stopped hop."""
    if node.state == Node.State.UNCONFIRMED:
        raise Refused(
            "host_key_unknown",
            f"Nobody has confirmed the host key of {node.name}.",
            status=409,
            remedy="Open the node, compare the fingerprint and confirm it.",
        )
    if node.state == Node.State.STOPPED:
        raise Refused(
            "host_key_changed",
            f"The host key of {node.name} changed; nothing is done there.",
            status=409,
            remedy="If the node was reinstalled, an admin replaces the pinned key with a reason.",
        )
    pinned = node.host_keys.filter(state=HostKey.State.PINNED).order_by("type")
    return _door(
        node, [(key.type, key.base64) for key in pinned], private_key(node.credential), _endpoint_of_jump(node)
    )


def _endpoint_of_jump(node: Node) -> Endpoint | None:
    return endpoint(node.jump) if node.jump else None


def _door(node: Node, pinned: Sequence[tuple[str, str]], key: str, via: Endpoint | None) -> Endpoint:
    return Endpoint(
        name=node.name,
        address=node.address,
        port=node.port,
        user=node.user,
        private_key=key,
        host_keys=tuple(pinned),
        via=via,
        login=node.logins,
    )


def endpoints(nodes: Sequence[Node]) -> dict[str, Endpoint]:
    """By name: those of all nodes that may be reached, with a few queries for all of them. A node behind one that is confirmed no more
    is left out. For nodes read with their credential and jump host."""
    pinned: dict[int, list[tuple[str, str]]] = {}
    for key in HostKey.objects.filter(state=HostKey.State.PINNED).order_by("type"):
        pinned.setdefault(key.node_id, []).append((key.type, key.base64))
    keys: dict[int, str] = {}
    every, made = {node.pk: node for node in nodes}, dict[int, Endpoint]()

    def door(node: Node) -> Endpoint | None:
        if node.pk not in made:
            if node.state != Node.State.READY:
                return None
            via = door(every.get(node.jump_id, node.jump)) if node.jump_id and node.jump else None
            if node.jump_id and via is None:
                return None
            if node.credential_id not in keys:
                keys[node.credential_id] = private_key(node.credential)
            made[node.pk] = _door(node, pinned.get(node.pk, ()), keys[node.credential_id], via)
        return made[node.pk]

    return {node.name: found for node in nodes if (found := door(node)) is not None}


def log_in_anew(name: str) -> None:
    """From now on every process logs in to this node anew: a warm connection keeps the groups and limits of its login."""
    Node.objects.filter(name=name).update(logins=F("logins") + 1)


def private_key(credential: Credential) -> str:
    return sealing.unseal(credential.sealed_private_key, context=KEY_CONTEXT)


def latest_sheet(node: Node) -> Sheet | None:
    row = node.sheets.order_by("-taken_at", "-pk").first()
    return None if row is None else Sheet.from_json(row.body)


def part_of_sheet(node: Node, field: str) -> Sheet:
    """The newest sheet with this one field of it: reading the rest takes long. Without a sheet the field is None."""
    body = node.sheets.order_by("-taken_at", "-pk").values_list(f"body__{field}", flat=True).first()
    return Sheet.from_json({"node": node.name, "taken_at": 0.0, field: body})


@transaction.atomic
def store_sheet(node: Node, sheet: Sheet) -> SheetRow:
    """Keep a sheet; the node was seen. Only the newest SHEETS_KEPT stay."""
    row = SheetRow.objects.create(node=node, taken_at=datetime.fromtimestamp(sheet.taken_at, UTC), body=sheet.to_json())
    old = list(node.sheets.order_by("-taken_at", "-pk").values_list("pk", flat=True)[SHEETS_KEPT:])
    if old:
        SheetRow.objects.filter(pk__in=old).delete()
    boot_id = (sheet.machine.boot_id if sheet.machine else None) or node.boot_id
    seen(node, boot_id=boot_id)
    return row


def seen(node: Node, *, boot_id: str = "") -> None:
    """The node answered."""
    Node.objects.filter(pk=node.pk).update(
        last_seen_at=timezone.now(),
        unreachable_since=None,
        unreachable_reason="",
        unreachable_evidence="",
        unreachable_hop="",
        boot_id=boot_id or node.boot_id,
        version=F("version") + 1,
    )
    _news(node)


@transaction.atomic
def not_reached(node: Node, *, reason: str, evidence: str, hop: str) -> None:
    """The node did not answer: nothing is destroyed, the last sheet stays. A changed host key stops the node."""
    fields: dict[str, Any] = {
        "unreachable_reason": reason,
        "unreachable_evidence": storable(evidence[:2000]),
        "unreachable_hop": hop,
        "version": F("version") + 1,
    }
    if node.unreachable_since is None:
        fields["unreachable_since"] = timezone.now()
    if reason == "host_key_changed" and hop == node.name and node.state == Node.State.READY:
        fields["state"] = Node.State.STOPPED
        from apps.audit.actor import robot

        record(
            robot("host key check"),
            "node:host_key_mismatch",
            object_type="node",
            object_id=str(node.pk),
            object_name=node.name,
            outcome="denied",
            after={"seen": storable(evidence[:300])},
        )
    Node.objects.filter(pk=node.pk).update(**fields)
    _news(node)


@transaction.atomic
def keys_offered(node: Node, found: Sequence[Mapping[str, str]]) -> None:
    """Remember keys that the node's door showed, e.g. after a change, so that an admin can compare and pin."""
    for key in found:
        state = HostKey.State.REFUSED if node.state == Node.State.STOPPED else HostKey.State.OFFERED
        HostKey.objects.get_or_create(
            node=node, type=key["type"], sha256=key["sha256"], defaults={"base64": key["base64"], "state": state}
        )

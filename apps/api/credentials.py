"""SSH keys: made here or uploaded; the private half never comes out again."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Status

from apps.api.finding import page
from apps.api.schemas import LIMIT, After, CredentialBody, CredentialOut, Credentials, Limit
from apps.inventory import services
from apps.inventory.models import Credential
from apps.people.access import actor_of, allow

router = Router(tags=["credentials"])


def shown(credential: Credential) -> CredentialOut:
    return CredentialOut(
        id=credential.pk,
        name=credential.name,
        kind=credential.kind,
        public_key=credential.public_key,
        created_at=credential.created_at,
        created_by=credential.created_by,
    )


@router.get("credentials", response=Credentials)
@allow("view")
def list_credentials(request: HttpRequest, after: After = None, limit: Limit = LIMIT) -> Credentials:
    """The public halves of all keys, the oldest first."""
    found, following = page(Credential.objects.all(), after=after, limit=limit)
    return Credentials(credentials=[shown(one) for one in found], next=following)


@router.post("credentials", response={201: CredentialOut})
@allow("edit_credentials")
def make_credential(request: HttpRequest, body: CredentialBody) -> Status[CredentialOut]:
    """Make an ed25519 pair, or keep an uploaded private key. Put `public_key` on the nodes that it shall open."""
    made = services.make_credential(
        actor_of(request), name=body.name, private_key=body.private_key, passphrase=body.passphrase
    )
    return Status(201, shown(made))

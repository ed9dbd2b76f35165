"""People, their one-time links, API tokens, the setup code and the memory of failed sign-ins."""

from __future__ import annotations

import unicodedata
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

from apps.people.roles import ROLES

ROLE_CHOICES = [(role, role) for role in ROLES]
NAME_MAX = 64
_PUNCTUATION = frozenset(" .-_'’@+·")


def tidy_name(name: str) -> str:
    """`name` in one normal form, with single spaces and none around it."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def validate_name(name: str) -> None:
    """Letters of any script, digits, spaces and . - _ ' @ +, first a letter or digit. Raises ValidationError."""
    if not 1 <= len(name) <= NAME_MAX:
        raise ValidationError(f"A name has 1 to {NAME_MAX} characters; this one has {len(name)}.", code="length")
    if unicodedata.category(name[0])[0] not in "LN":
        raise ValidationError("A name begins with a letter or a digit.", code="first")
    for character in name:
        if unicodedata.category(character)[0] not in "LMN" and character not in _PUNCTUATION:
            raise ValidationError(
                f"A name has letters, digits, spaces and . - _ ' @ + only, not {character!a}.", code="character"
            )


def name_key(name: str) -> str:
    """Equal for names that people would read as the same: case and width do not count."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


class People(BaseUserManager["User"]):
    def get_by_natural_key(self, username: str | None) -> User:
        return self.get(name_key=name_key(tidy_name(username or "")))

    def active_admins(self) -> models.QuerySet[User]:
        return self.filter(role="admin", active=True)


class User(AbstractBaseUser):
    """A person. Never deleted, only deactivated, so that the past keeps its names."""

    name = models.CharField(max_length=NAME_MAX, unique=True, validators=[validate_name])
    name_key = models.CharField(max_length=4 * NAME_MAX, unique=True, editable=False)
    role = models.CharField(max_length=16, choices=ROLE_CHOICES)
    active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now)
    created_by = models.CharField(max_length=128, blank=True)  # a name, as in the audit trail
    last_seen_at = models.DateTimeField(null=True, blank=True)
    # Grows with each change of role, password or activity; sessions and sockets that carry an older one are over.
    access_version = models.PositiveIntegerField(default=1)

    USERNAME_FIELD = "name"
    REQUIRED_FIELDS: ClassVar[list[str]] = ["role"]

    objects: ClassVar[People] = People()

    class Meta:
        ordering: ClassVar[list[str]] = ["name_key"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(condition=models.Q(role__in=list(ROLES)), name="people_user_role_known")
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_active(self) -> bool:  # type: ignore[override]
        return self.active

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.name_key = name_key(self.name)
        super().save(*args, **kwargs)


class ApiToken(models.Model):
    """A bearer token for the API. Only its hash is kept."""

    name = models.CharField(max_length=NAME_MAX)
    role = models.CharField(max_length=16, choices=ROLE_CHOICES)
    sha256 = models.CharField(max_length=64, unique=True)
    prefix = models.CharField(max_length=16)  # shown, to tell tokens apart
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="tokens")
    created_at = models.DateTimeField(default=timezone.now)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def state(self) -> str:
        """active, revoked or expired."""
        if self.revoked_at:
            return "revoked"
        if self.expires_at and self.expires_at <= timezone.now():
            return "expired"
        return "active"


class SignInLink(models.Model):
    """A link that signs one person in, once. Only its hash is kept."""

    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="links")
    sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"link of {self.person}"


class SetupCode(models.Model):
    """The one-time code that was printed at the start; it makes the first administrator."""

    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return "setup code"


class Throttle(models.Model):
    """Failed sign-ins from one address, to one name or to any."""

    key = models.CharField(max_length=64, unique=True)  # a hash
    failures = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField(default=timezone.now)
    blocked_until = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.failures} failures"

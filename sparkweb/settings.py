"""All settings, in one file. Every value that differs between installations comes from the environment (docs/settings.md)."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from sparkweb import env, reach

BASE_DIR = env.BASE
VAR = env.made_var()
COMMAND = env.command()  # how pages and answers name our own commands

DEBUG = False
SECRET_KEY = env.kept_secret("secret_key", "SECRET_KEY")
SPARKWEB_KEY = env.kept_secret("sealing_key", "SPARKWEB_KEY")  # seals credentials; never in the database

# One exact origin per address the site is opened at; sockets and CSRF accept these and nothing else.
REACH = reach.from_environment()
HOST, PORT = REACH.host, REACH.port
ORIGINS = list(REACH.origins)
ALLOWED_HOSTS = REACH.hosts
CSRF_TRUSTED_ORIGINS = ORIGINS
HTTPS = REACH.https

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "csp",
    "django_htmx",
    "apps.audit",
    "apps.people",
    "apps.inventory",
    "apps.recipes",
    "apps.deployments",
    "apps.runs",
    "apps.watch",
    "apps.benchmarks",
    "apps.live",
    "apps.pages",
    "apps.api",
    "apps.lab",
    "sparkweb",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "apps.pages.storable.StorableMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "apps.people.middleware.ActorMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "sparkweb.urls"
ASGI_APPLICATION = "sparkweb.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
                "apps.pages.access.page_context",
            ],
            "loaders": ["django.template.loaders.filesystem.Loader"],
            "libraries": {"sparkweb": "apps.pages.words"},
            "builtins": ["apps.pages.words"],
        },
    }
]


# A server that vanished without a word is given up after half a minute, not after the kernel's two hours.
LIBPQ: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30000,  # ms
}


def _database() -> dict[str, Any]:
    """DATABASE_URL=postgres://user:password@host:5432/name?sslmode=require, else SQLite in VAR (WAL, writers queue)."""
    url = env.url("DATABASE_URL", "DATABASE_PASSWORD")
    if not url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": env.kept_private(VAR / "sparkweb.sqlite3"),
            "OPTIONS": {
                "timeout": 30,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=30000;",
            },
            "TEST": {"NAME": VAR / "test.sqlite3"},
        }
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("postgres", "postgresql") or not parts.path.strip("/"):
        raise ImproperlyConfigured("DATABASE_URL must be postgres://user:password@host:port/name")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.strip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": port or "",
        "OPTIONS": {**LIBPQ, **dict(parse_qsl(parts.query))},  # sslmode, sslrootcert … as libpq names them
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "people.User"
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "/sign-in"


def _redis_url() -> str:
    """REDIS_URL, else the server that the supervisor started (it writes its address into VAR/run/redis.json)."""
    given = env.url("REDIS_URL", "REDIS_PASSWORD")
    if given:
        return given
    try:
        return str(json.loads((VAR / "run" / "redis.json").read_text())["url"])
    except (OSError, ValueError, KeyError):
        return "redis://127.0.0.1:6379/0"


REDIS_URL = _redis_url()

# Celery: messages are wake-ups only. The truth is in the database, so nothing here needs to be durable.
TASKS_OF = "sparkweb.celery"  # whose broker tasks go to: imported by what sends one, most commands send none
CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 600,  # many times the longest slice (about 30 s)
    "socket_keepalive": True,
    "socket_timeout": 15,
    "socket_connect_timeout": 3,
    "health_check_interval": 10,
    "retry_policy": {"timeout": 3.0},
}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.2}
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"

WATCH_PERIOD_S = env.seconds("WATCH_PERIOD_S", 20, least=1)
LEASE_S = env.seconds("LEASE_S", 12, least=3)
REAP_PERIOD_S = env.seconds("REAP_PERIOD_S", 3, least=1)
FOLLOW_PERIOD_S = env.seconds("FOLLOW_PERIOD_S", 2, least=0.5)
# Of every output the first and the last are kept here, for so many days (0: for ever), and so much of it on its node.
LOG_HEAD_BYTES = env.whole("LOG_HEAD_MIB", 8, least=1) << 20
LOG_TAIL_BYTES = env.whole("LOG_TAIL_MIB", 56, least=1) << 20
LOG_NODE_BYTES = env.whole("LOG_NODE_MIB", 1024, least=1) << 20
LOG_KEPT_DAYS = env.whole("LOG_KEPT_DAYS", 30)
SLICE_S = 20.0  # how long one task works on a run before it gives the thread back

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = VAR / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True
WHITENOISE_MAX_AGE = 0  # browsers ask again and get a 304: no old script after an upgrade

SESSION_COOKIE_AGE = 7 * 24 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
CSRF_COOKIE_HTTPONLY = False
CSRF_COOKIE_SAMESITE = "Lax"
# Cookies are shared by all ports of a host: two copies on one machine need names of their own.
SESSION_COOKIE_NAME = f"{'__Host-' if HTTPS else ''}sparkweb_{PORT}"
CSRF_COOKIE_NAME = f"{'__Host-' if HTTPS else ''}sparkweb_csrf_{PORT}"
CSRF_FAILURE_VIEW = "apps.pages.errors.csrf_failure"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_SSL_REDIRECT = False  # nothing listens on plain HTTP when HTTPS is on
SECURE_HSTS_SECONDS = 31536000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
SECURE_HSTS_PRELOAD = False
SILENCED_SYSTEM_CHECKS = ["security.W008", "security.W021"] + (
    [] if HTTPS else ["security.W004", "security.W012", "security.W016"]
)
X_FRAME_OPTIONS = "DENY"
_sockets = [origin.replace("http", "ws", 1) for origin in ORIGINS]
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF, *_sockets],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
        "object-src": [NONE],
        "form-action": [SELF],
    }
}
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "filters": {"away": {"()": "sparkweb.logs.AwayInOneLine"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain", "filters": ["away"]}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "paramiko": {"level": "CRITICAL"},
        "django.server": {"level": "WARNING"},
        "celery": {"level": "WARNING"},
        "kombu": {"level": "WARNING"},
    },
}

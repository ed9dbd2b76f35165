"""Composition only: settings, urls, the ASGI and Celery applications, system checks, the supervisor."""

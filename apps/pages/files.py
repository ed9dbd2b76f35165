"""Files to keep: one as it is, several as an archive."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

from django.http import HttpResponse

DATED = (2000, 1, 1, 0, 0, 0)  # the same files give the same archive


def download(files: Mapping[str, str], name: str) -> HttpResponse:
    """`name`: of the archive, where there are several."""
    if len(files) == 1:
        path, text = next(iter(files.items()))
        return _attached(text.encode(), path.rpartition("/")[2], "text/plain; charset=utf-8")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, DATED), text, zipfile.ZIP_DEFLATED)
    return _attached(packed.getvalue(), f"{name}.zip", "application/zip")


def _attached(data: bytes, name: str, kind: str) -> HttpResponse:
    made = HttpResponse(data, content_type=kind)
    made["Content-Disposition"] = f'attachment; filename="{name}"'
    return made

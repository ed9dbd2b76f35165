"""The server's own TLS, from settings to the socket."""

from __future__ import annotations

import re
import ssl
import stat
from pathlib import Path

import httpx
import pytest

from sparkweb import tls
from tests.live.conftest import redis_url
from tests.production.conftest import Installation
from tests.production.serving import free_port, served
from tests.production.visit import Site, check_the_way_in

__all__ = ["redis_url"]


def link_of(said: str) -> str:
    found = re.search(r"/sign-in/\S+", said)
    assert found, said
    return found.group(0)


def test_sign_in_and_socket_over_our_own_certificate(tmp_path: Path, redis_url: str) -> None:
    port = free_port()
    origin = f"https://localhost:{port}"
    place = Installation(
        tmp_path / "v", {"PORT": str(port), "ORIGINS": origin, "TLS_SELF_SIGNED": "1", "REDIS_URL": redis_url}
    )
    place.manage("serve", "prepare")
    links = [
        link_of(place.manage("person", "add", "Ana", "--role", "admin")),
        link_of(place.manage("person", "add", "Ben", "--role", "viewer")),
    ]
    with served(place, tmp_path / "web.log"):
        place.manage("serve", "web", "--healthy")
        certificate = place.folder / "tls" / "certificate.pem"
        browser = check_the_way_in(Site(origin, certificate), links)
        cookie = next(cookie for cookie in browser.cookies.jar if "csrf" not in cookie.name)
        assert cookie.secure and cookie.name.startswith("__Host-")
        answer = browser.get("/sign-in")
        assert "max-age=31536000" in answer.headers["Strict-Transport-Security"]
        assert f"wss://localhost:{port}" in answer.headers["Content-Security-Policy"]
        assert "Plain HTTP" not in browser.get("/").text
        with pytest.raises(httpx.TransportError):  # nothing speaks plain HTTP there
            httpx.get(f"http://localhost:{port}/healthz", trust_env=False)
        said = (tmp_path / "web.log").read_text()
        assert tls.fingerprint(certificate) in said and origin in said and "Traceback" not in said
        assert (
            browser.get(f"https://127.0.0.1:{port}/healthz", extensions={"sni_hostname": "localhost"}).status_code
            == 400
        )


def test_a_certificate_is_made_kept_and_renewed(tmp_path: Path) -> None:
    origins = ["https://sparkweb.example", "https://10.0.0.1:8443", "https://[::1]:8443", "https://bücher.example"]
    files = tls.self_signed(tmp_path / "tls", origins)
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    first = files.certificate.read_bytes()
    assert tls.self_signed(tmp_path / "tls", origins[:2]).certificate.read_bytes() == first  # its names suffice
    decoded = ssl._ssl._test_decode_cert(str(files.certificate))  # type: ignore[attr-defined]
    assert ("DNS", "sparkweb.example") in decoded["subjectAltName"] and ("IP Address", "10.0.0.1") in decoded[
        "subjectAltName"
    ]
    tls.self_signed(tmp_path / "tls", ["https://other.example"])
    assert files.certificate.read_bytes() != first
    files.key.write_text("damaged")
    tls.self_signed(tmp_path / "tls", ["https://other.example"])
    tls.checked(files)


def test_a_bad_pair_is_named(tmp_path: Path) -> None:
    one, two = (
        tls.self_signed(tmp_path / "a", ["https://a.example"]),
        tls.self_signed(tmp_path / "b", ["https://b.example"]),
    )
    with pytest.raises(tls.BadCertificate, match="no pair"):
        tls.checked(tls.Files(one.certificate, two.key))
    with pytest.raises(tls.BadCertificate, match=r"TLS_KEY=.*can't be read"):
        tls.checked(tls.Files(one.certificate, tmp_path / "none.pem"))

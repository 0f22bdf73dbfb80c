"""What the client shows a service, and believes of it: API keys and certificates."""

import shutil
import subprocess
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from pace import InvalidOptions, ServiceUnavailable
from pace.client import Client
from tests.api.answering import answering, send


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a certificate of one's own for 127.0.0.1; return it and its key."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed (Debian: apt-get install openssl)")
    folder: Path = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    named = ["-subj", "/CN=pace", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*made, *named, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.mark.parametrize("given", ["argument", "SSL_CERT_FILE", "nothing"])
def test_a_service_with_a_private_certificate(
    certificates: tuple[Path, Path], given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trusted where the caller or the environment says so, and not otherwise."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    certificate, _ = certificates
    if given == "SSL_CERT_FILE":
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with (
        answering(lambda handler: send(handler, 200, b"{}"), certificates) as url,
        Client(url, timeout_s=250, ca_file=certificate if given == "argument" else None) as client,
    ):
        assert client.healthy() == (given != "nothing")


def test_a_key_with_a_line_break_at_its_end_is_a_key() -> None:
    """As a secret from a file has it. One that can be none is refused without showing it."""
    sent: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        sent.append(handler.headers["Authorization"])
        send(handler, 200, b"{}")

    with answering(answer) as url:
        for key in ("pace_secret\n", "", "\n"):
            with Client(url, key, timeout_s=30) as client:
                assert client.healthy()
        assert sent == ["Bearer pace_secret", None, None]
        for key in ("pace_secret\nother", "pace_s\xe9cret"):
            with pytest.raises(ServiceUnavailable, match="the API key has a character") as refused:
                Client(url, key)
            assert "pace" not in str(refused.value)


def test_a_url_with_a_password_is_refused() -> None:
    """In one line without it; so is what is no URL."""
    with pytest.raises(InvalidOptions, match=r"leave the user name .* with api_key") as refused:
        Client("http://me:secret@127.0.0.1:1")
    assert "secret" not in str(refused.value)
    for other in (None, b"http://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1:1\n"):
        with pytest.raises(InvalidOptions, match="which is not a URL"):
            Client(other)  # type: ignore[arg-type]  # what is refused


def test_certificates_that_cannot_be_read_are_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose environment names a file that is gone is told so, and trains without the service."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    with pytest.raises(ServiceUnavailable, match="SSL_CERT_FILE"):
        Client("https://127.0.0.1:1")
    with pytest.raises(ServiceUnavailable, match=r"gone\.pem"):
        Client("https://127.0.0.1:1", ca_file=tmp_path / "gone.pem")

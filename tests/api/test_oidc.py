"""Bearer tokens of an issuer, beside API keys."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from socket import socket
from typing import Any

import pytest

pytest.importorskip("jwt")

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from pace.api.errors import IssuerUnavailable, Unauthorized
from pace.api.oidc import Claims, OidcIssuer
from pace.api.settings import load_settings
from pace.errors import InvalidOptions
from tests.api.issuer import AUDIENCE, TestIssuer
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile
from tests.api.raw_server import answering, drip


@pytest.fixture(scope="module")
def issuer() -> Iterator[TestIssuer]:
    """Start an issuer."""
    with TestIssuer() as issuer:
        issuer.add_key("curve", elliptic=True)
        issuer.add_key("secret", publish=False)
        yield issuer


def _verifier(issuer: TestIssuer, **more: Any) -> OidcIssuer:
    given = {"tenant_claim": "tenant", "scopes_claim": "scope", "scope_prefix": "pace:", **more}
    return OidcIssuer(issuer.url, AUDIENCE, **given)


def _verify(verifier: OidcIssuer, token: str) -> Claims:
    return asyncio.run(verifier.verify(token))


@pytest.mark.parametrize(("key", "algorithm"), [("first", "RS256"), ("first", "PS512"), ("curve", "ES256")])
def test_valid_tokens_are_understood(issuer: TestIssuer, key: str, algorithm: str) -> None:
    """Whatever of the allowed signatures the issuer uses; scopes of others are not taken for ours."""
    claims = _verify(_verifier(issuer), issuer.token(key=key, algorithm=algorithm))
    assert (claims.tenant, claims.scopes, claims.subject) == (
        "vision",
        frozenset(("read", "submit")),
        "robot",
    )


def test_claims_are_found_where_the_settings_say(issuer: TestIssuer) -> None:
    """In nested claims, under names with dots, as lists."""
    token = issuer.token(org={"unit": "nested"}, roles=["read", 7, "cook"])
    claims = _verify(_verifier(issuer, tenant_claim="org.unit", scopes_claim="roles", scope_prefix=""), token)
    assert (claims.tenant, claims.scopes) == ("nested", frozenset(("read", "cook")))
    claims_given: dict[str, Any] = {"https://our/tenant": "named", "scope": None}
    token = issuer.token(**claims_given)
    claims = _verify(_verifier(issuer, tenant_claim="https://our/tenant"), token)
    assert (claims.tenant, claims.scopes) == ("named", frozenset())


def _forged(issuer: TestIssuer, algorithm: str) -> str:
    """Sign with the published key as if it were a shared secret, or not at all."""

    def part(document: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()

    if algorithm == "none":
        _, claims, _ = issuer.token().split(".")
        return f"{part({'alg': 'none', 'kid': 'first'})}.{claims}."
    values = jwt.decode(issuer.token(), options={"verify_signature": False})
    return jwt.encode(values, issuer.published[0]["n"], algorithm=algorithm, headers={"kid": "first"})


def test_tokens_that_are_not_valid_are_refused(issuer: TestIssuer) -> None:
    """Expired, early, of others, for others, unsigned, signed otherwise, without a tenant."""
    verifier = _verifier(issuer)
    past, future = time.time() - 100, time.time() + 100
    swapped = issuer.token().split(".")
    swapped[1] = issuer.token(tenant="theirs").split(".")[1]
    for token, message in (
        (issuer.token(exp=past), "expired"),
        (issuer.token(exp=None), "exp"),
        (issuer.token(nbf=future), "not yet valid"),
        (issuer.token(iss="https://other"), "issuer"),
        (issuer.token(aud="https://other"), "udience"),
        (issuer.token(sub=None), "sub"),
        (issuer.token(tenant=None), "names no tenant"),
        (issuer.token(tenant=["a"]), "names no tenant"),
        (issuer.token(tenant="a\nb"), "names no tenant"),
        (issuer.token(key="secret"), "none of the issuer's keys"),
        (".".join(swapped), "ignature"),
        (_forged(issuer, "HS256"), "not allowed"),
        (_forged(issuer, "none"), "not allowed"),
        ("a.b.c", "not valid"),
        ("x" * 20_000, "too long"),
    ):
        with pytest.raises(Unauthorized, match=message):
            _verify(verifier, token)


def test_a_key_that_does_not_fit_the_token_is_a_failed_login() -> None:
    """A token that names a key of another type or curve, or one that cannot be read, is not valid."""
    with TestIssuer() as issuer:
        issuer.keys["impostor"] = ec.generate_private_key(ec.SECP256R1())
        other = {"kty": "OKP", "kid": "impostor", "use": "sig", "crv": "Ed448", "x": "AA"}
        for published in (
            issuer.published[0] | {"kid": "impostor"},
            other,
            {"kty": "EC", "kid": "impostor", "use": "sig", "crv": "P-256"},
            {"kty": "EC", "kid": "impostor", "use": "sig", "crv": "P-256", "x": "é", "y": 7},
            {"kty": "RSA", "kid": "impostor", "use": "sig", "n": "", "e": ""},
        ):
            issuer.published[:] = [published]
            with pytest.raises(Unauthorized):
                _verify(_verifier(issuer), issuer.token(key="impostor", algorithm="ES256"))


def test_keys_are_fetched_seldom() -> None:
    """Not for every token, nor for every invented key; a new one is found, and an issuer's silence borne."""
    with TestIssuer() as issuer:
        verifier = _verifier(issuer)
        issuer.add_key("invented", publish=False)

        async def run() -> None:
            valid = [issuer.token(sub=str(number)) for number in range(5)]
            await asyncio.gather(*(verifier.verify(token) for token in valid))
            for _ in range(5):
                with pytest.raises(Unauthorized):
                    await verifier.verify(issuer.token(key="invented"))

        asyncio.run(run())
        assert issuer.num_fetched == 1
        issuer.add_key("second")
        verifier._fetched_at_s -= 20
        assert _verify(verifier, issuer.token(key="second")).tenant == "vision"
        assert issuer.num_fetched == 2
    verifier._fetched_at_s -= 1000
    assert _verify(verifier, issuer.token(key="second", sub="later")).subject == "later"
    with pytest.raises(IssuerUnavailable):
        _verify(_verifier(issuer), issuer.token())


def test_an_issuer_that_never_ends_its_answer_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token waits for it for ever: one of a known key is valid."""
    with TestIssuer() as issuer:
        verifier = _verifier(issuer)
        token = issuer.token()
        _verify(verifier, token)
        monkeypatch.setattr("pace.api.oidc._FETCH_TIMEOUT_S", 0.3)
        with answering(drip) as url:
            verifier._url = url
            verifier._fetched_at_s -= 1000
            assert _verify(verifier, issuer.token(sub="later", iss=url)).subject == "later"
            with pytest.raises(IssuerUnavailable):
                _verify(OidcIssuer(url, AUDIENCE, tenant_claim="tenant", scopes_claim="scope"), token)


def test_keys_are_not_taken_from_where_an_issuer_redirects_to() -> None:
    """A redirect could lead away from https."""
    with TestIssuer() as issuer:

        def redirect_to_keys(request: bytes, connection: socket) -> None:
            where = f"http://{request.split(b'Host: ')[1].split()[0].decode()}"
            metadata = json.dumps({"issuer": where, "jwks_uri": f"{where}/keys"})
            head = "200 OK"
            if request.startswith(b"GET /keys"):
                head = f"302 Found\r\nLocation: {issuer.url}/keys"
            head = f"HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {len(metadata)}"
            connection.sendall(f"{head}\r\n\r\n{metadata}".encode())

        with answering(redirect_to_keys) as url:
            verifier = _verifier(issuer)
            verifier._url = url
            with pytest.raises(IssuerUnavailable):
                _verify(verifier, issuer.token(iss=url))
        assert issuer.num_fetched == 0


def test_a_time_of_expiry_that_is_no_time_is_refused(issuer: TestIssuer) -> None:
    """However large a number it is."""
    with pytest.raises(Unauthorized, match="not valid"):
        _verify(_verifier(issuer), issuer.token(exp=10**400))


def test_settings_of_an_issuer_are_checked() -> None:
    """No audience and no https are refused."""
    with pytest.raises(InvalidOptions, match="PACE_OIDC_AUDIENCE: PACE_OIDC_ISSUER needs an audience"):
        load_settings(oidc_issuer="https://issuer.example")
    with pytest.raises(InvalidOptions, match="PACE_OIDC_ISSUER: expected an https URL"):
        load_settings(oidc_issuer="http://issuer.example", oidc_audience="x")
    load_settings(oidc_issuer="http://127.0.0.1:1", oidc_audience="x")


def test_tokens_and_keys_open_the_same_doors(issuer: TestIssuer, tmp_path: Path) -> None:
    """By tenant and scope; reads and denials are audited where that is wanted; failed logins are limited."""
    with ServiceProcess(
        tmp_path,
        auth="required",
        audit="all",
        login_failures="3/minute",
        oidc_issuer=issuer.url,
        oidc_audience=AUDIENCE,
        oidc_scope_prefix="pace:",
    ) as service:
        service.http.headers["Authorization"] = f"Bearer {issuer.token()}"
        path = service.post_schedule(layered_profile(3)).headers["location"]
        assert service.http.get(path).status_code == 200
        denied = service.http.delete(path)
        assert (denied.status_code, denied.json()["type"]) == (403, "urn:pace:problem:forbidden")
        other = {"Authorization": f"Bearer {issuer.token(tenant='other')}"}
        assert service.http.get(path, headers=other).status_code == 404
        key = {"Authorization": f"Bearer {service.token('vision', 'read', 'admin')}"}
        assert service.http.get(path, headers=key).status_code == 200
        for number in range(5):
            expired = {"Authorization": f"Bearer {issuer.token(exp=number)}"}
            answer = service.http.get(path, headers=expired)
            assert answer.status_code == (401 if number < 3 else 429)
        assert "retry-after" in answer.headers
        # Known ones still work, new ones do not.
        assert service.http.get(path).status_code == service.http.get(path, headers=key).status_code == 200
        unknown = {"Authorization": f"Bearer {service.token('vision', 'read')}"}
        assert service.http.get(path, headers=unknown).status_code == 429
        audited = [entry for entry in service.log() if entry.get("logger") == "pace.audit"]
    assert {entry.get("subject") for entry in audited if entry["event"] == "schedule-requested"} == {"robot"}
    reads = [entry for entry in audited if entry["event"] == "read"]
    assert {(entry["path"], entry["tenant"]) for entry in reads} == {(path, "vision"), (path, "other")}
    denials = [entry["reason"] for entry in audited if entry["event"] == "denied"]
    assert len(denials) == 1 + 5 + 1
    assert "lacks the scope" in denials[0]
    assert not [entry for entry in audited if issuer.token().rpartition(".")[2] in json.dumps(entry)]

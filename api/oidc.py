"""Verify bearer tokens of an OpenID Connect issuer by its published keys. Needs ``pace-scheduler[oidc]``."""

import asyncio
import json
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
import structlog

from pace.api.errors import IssuerUnavailable, Unauthorized

log = structlog.get_logger(__name__)

# Only signatures by a private key: whoever verifies with a shared secret could also sign.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_KEY_TYPES = ("RSA", "EC", "OKP")
_MOST_TOKEN_CHARACTERS = 16_384
_MOST_DOCUMENT_BYTES = 2**20
# For both documents together, however slowly they come.
_FETCH_TIMEOUT_S = 5.0
_FRESH_S = 300.0
_FETCHED_AGAIN_S = 10.0
_TRUSTED_S = 60.0
_MOST_TRUSTED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of a valid token.

    Attributes
    ----------
    tenant
        The tenant, from the claim that names it.
    scopes
        The scopes that have the service's prefix, without the prefix.
    expires_at_s
        Seconds since 1970.
    """

    tenant: str
    scopes: frozenset[str]
    subject: str
    expires_at_s: float


class OidcIssuer:
    """Verifies tokens of one issuer.

    Keys are fetched at their first use, every five minutes, and when a token names an unknown key, but at
    most every ten seconds. While the issuer does not answer, the last keys are used.

    Parameters
    ----------
    url
        The issuer, as its tokens name it; its metadata are under ``/.well-known/openid-configuration``.
    audience
        Value of ``aud`` in tokens for this service.
    tenant_claim, scopes_claim
        Names of claims; dots separate nested names. Scopes are a list, or one text with spaces.
    scope_prefix
        Prefix of the service's scopes in the claim.
    leeway_s
        Largest accepted difference of the issuer's clock in seconds.
    """

    def __init__(
        self,
        url: str,
        audience: str,
        *,
        tenant_claim: str,
        scopes_claim: str,
        scope_prefix: str = "",
        leeway_s: float = 30.0,
    ) -> None:
        self._url = url
        self._audience = audience
        self._tenant_claim = tenant_claim
        self._scopes_claim = scopes_claim
        self._scope_prefix = scope_prefix
        self._leeway_s = leeway_s
        self._keys: list[dict[str, Any]] = []
        self._fetched_at_s = -_FRESH_S
        self._fetching: asyncio.Task[None] | None = None
        self._trusted: OrderedDict[bytes, tuple[float, Claims]] = OrderedDict()

    async def verify(self, token: str) -> Claims:
        """Return the claims of a token.

        Raises
        ------
        Unauthorized
            If the token is not valid, not from this issuer, not for this service, or names no tenant.
        IssuerUnavailable
            If the issuer's keys are not known and cannot be fetched.
        """
        digest = sha256(token.encode()).digest()
        known = self._known(digest)
        if known is not None:
            return known
        claims = await self._verify(token)
        self._trusted[digest] = (time.monotonic() + _TRUSTED_S, claims)
        if len(self._trusted) > _MOST_TRUSTED:
            self._trusted.popitem(last=False)
        return claims

    def knows(self, token: str) -> bool:
        """Whether a token was verified recently."""
        return self._known(sha256(token.encode()).digest()) is not None

    def _known(self, digest: bytes) -> Claims | None:
        until_s, claims = self._trusted.get(digest, (0.0, None))
        if claims is None or until_s < time.monotonic() or claims.expires_at_s + self._leeway_s < time.time():
            return None
        return claims

    async def _verify(self, token: str) -> Claims:
        if len(token) > _MOST_TOKEN_CHARACTERS:
            raise Unauthorized("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in _ALGORITHMS:
                raise Unauthorized("the token is signed in a way that is not allowed")
            values = jwt.decode(
                token,
                await self._key(header),
                algorithms=[header["alg"]],
                audience=self._audience,
                issuer=self._url,
                leeway=self._leeway_s,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            return self._claims(values)
        except jwt.ExpiredSignatureError:
            raise Unauthorized("the token has expired") from None
        except (jwt.PyJWTError, OverflowError, RecursionError) as error:
            # Of the token, of its numbers or depth, or of a key that is not for such signatures.
            raise Unauthorized(f"the token is not valid: {error}") from None

    def _claims(self, values: Mapping[str, Any]) -> Claims:
        tenant = _find(values, self._tenant_claim)
        if not isinstance(tenant, str) or not 1 <= len(tenant) <= 100 or not tenant.isprintable():
            raise Unauthorized(f'the token names no tenant in its claim "{self._tenant_claim}"')
        given = _find(values, self._scopes_claim)
        names = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
        scopes = frozenset(
            name.removeprefix(self._scope_prefix)
            for name in names
            if isinstance(name, str) and name.startswith(self._scope_prefix)
        )
        return Claims(
            tenant=tenant, scopes=scopes, subject=str(values["sub"])[:200], expires_at_s=float(values["exp"])
        )

    async def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        age_s = time.monotonic() - self._fetched_at_s
        if age_s > _FRESH_S or (self._find_key(header) is None and age_s > _FETCHED_AGAIN_S):
            await self._fetch_once()
        key = self._find_key(header)
        if key is not None:
            try:
                return jwt.PyJWK(key, algorithm=header["alg"])
            except (LookupError, TypeError, ValueError) as error:
                log.warning("issuer-key-not-valid", issuer=self._url, key=key.get("kid"), error=repr(error))
                raise Unauthorized("the issuer's key for this token cannot be read") from None
        if not self._keys:
            raise IssuerUnavailable("the issuer of tokens does not answer; ask again later")
        raise Unauthorized("the token is signed by none of the issuer's keys")

    def _find_key(self, header: Mapping[str, Any]) -> dict[str, Any] | None:
        named = [
            key
            for key in self._keys
            if key.get("kid") == header.get("kid") and key.get("alg", header["alg"]) == header["alg"]
        ]
        return named[0] if len(named) == 1 else None

    async def _fetch_once(self) -> None:
        # One request for all waiting callers; it continues if one of them disconnects.
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch())
        await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        try:
            self._keys = await fetch_keys(self._url)
        except Exception as error:  # of the network or the issuer: keep the known keys
            log.warning("issuer-unavailable", issuer=self._url, error=str(error) or type(error).__name__)
        self._fetched_at_s = time.monotonic()
        self._fetching = None


async def fetch_keys(issuer: str) -> list[dict[str, Any]]:
    """Fetch an issuer's metadata and keys; redirects are not followed.

    Raises
    ------
    httpx.HTTPError, OSError, ValueError
        If the issuer does not answer in time, or its answer is not valid.
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    certificates = await asyncio.to_thread(ssl.create_default_context)
    async with asyncio.timeout(_FETCH_TIMEOUT_S), httpx.AsyncClient(verify=certificates) as client:
        metadata = await _get(client, issuer.rstrip("/") + "/.well-known/openid-configuration")
        if metadata.get("issuer") != issuer:
            raise ValueError(f"the metadata are of another issuer: {metadata.get('issuer')!r}")
        uri = str(metadata.get("jwks_uri", ""))
        if urlsplit(uri).scheme != "https" and urlsplit(uri).scheme != urlsplit(issuer).scheme:
            raise ValueError(f"jwks_uri is not https: {uri!r}")
        keys = (await _get(client, uri)).get("keys")
    if not isinstance(keys, list):
        raise ValueError("jwks_uri has no keys")
    return [
        key
        for key in keys
        if isinstance(key, dict) and key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig"
    ]


async def _get(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    body = b""
    async with client.stream("GET", url, headers={"Accept": "application/json"}) as answer:
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"{url} answers with {answer.status_code}")
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > _MOST_DOCUMENT_BYTES:
                raise ValueError(f"{url} answers with more than {_MOST_DOCUMENT_BYTES} bytes")
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError(f"{url} answers with no JSON object")
    return document


def _find(values: Mapping[str, Any], name: str) -> Any:
    if name in values:
        return values[name]
    found: Any = values
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found

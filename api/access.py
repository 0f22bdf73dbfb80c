"""Authentication and authorization: API keys, tokens of an issuer, scopes and rate limits."""

import asyncio
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

import structlog
from limits import parse

from pace.api.errors import Forbidden, RateLimited, Unauthorized
from pace.api.logs import brief
from pace.api.storage.keys import SCOPES, ApiKey, KeyRing, Scope
from pace.api.storage.threads import DatabaseThreads

if TYPE_CHECKING:
    from pace.api.oidc import OidcIssuer

log = structlog.get_logger(__name__)

_TOKEN = re.compile(r"pace_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_USE_NOTED_S = 60.0
# A valid key is not looked up again for this long, and a revoked key works this long.
_TRUST_S = 5.0
_MOST_KNOWN = 10_000
# So many windows are kept before those that have ended are looked for.
_MANY_WINDOWS = 1000
# A key of which nothing is known.
_UNKNOWN: "tuple[float, ApiKey | None]" = (0.0, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLeft:
    """Number of requests that a tenant may send until its rate limit's period ends."""

    limit: int
    remaining: int
    reset_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who sent a request.

    Attributes
    ----------
    tenant
        The tenant whose data the principal may see.
    key_id
        The API key's identifier; None without API keys and for tokens of an issuer.
    subject
        The subject that the issuer names; None for API keys.
    """

    tenant: str
    scopes: frozenset[Scope]
    key_id: str | None
    subject: str | None = None


class RateWindows:
    """Counts events by name. A name's window begins with its first event.

    Nothing here waits: it is asked for each request.

    Parameters
    ----------
    rate
        Largest rate of one name, such as "6000/minute".
    now
        A clock, in seconds.

    Attributes
    ----------
    most
        Largest number of events in a window.
    """

    def __init__(self, rate: str, now: Callable[[], float] = time.monotonic) -> None:
        limit = parse(rate)
        self.most: int = limit.amount
        self._text = str(limit)
        self._window_s: float = limit.get_expiry()
        self._now = now
        # When each window ends, and how many events it has.
        self._windows: dict[str, tuple[float, int]] = {}
        self._many = _MANY_WINDOWS

    def __str__(self) -> str:
        return self._text

    def count(self, name: str) -> int:
        """Count an event; return the number of events in the window, this one included."""
        ends_s, count = self._window(name)
        if not count and len(self._windows) >= self._many:
            self._forget()
        self._windows[name] = (ends_s, count + 1)
        return count + 1

    def is_full(self, name: str) -> bool:
        """Whether one more event would be beyond the rate."""
        return self._window(name)[1] >= self.most

    def reset_s(self, name: str) -> int:
        """Return the whole seconds until the window ends, at least one."""
        return max(1, round(self._window(name)[0] - self._now()))

    def _window(self, name: str) -> tuple[float, int]:
        window = self._windows.get(name)
        now_s = self._now()
        return window if window is not None and now_s < window[0] else (now_s + self._window_s, 0)

    def _forget(self) -> None:
        now_s = self._now()
        self._windows = {name: window for name, window in self._windows.items() if now_s < window[0]}
        # Looked through again only after as many more, so that each event costs the same on average.
        self._many = max(_MANY_WINDOWS, 2 * len(self._windows))


class AccessControl:
    """Admits requests.

    Parameters
    ----------
    keys
        API keys; None admits everyone as the tenant "default", which is only safe on loopback.
    rate_limit
        Largest rate of a tenant's requests, such as "6000/minute"; empty for no limit.
    threads
        Threads that look keys up.
    issuer
        Issuer whose tokens are valid besides keys.
    failure_limit
        Largest rate of invalid keys or tokens from one address. Beyond it, only keys and tokens that were
        recently valid are accepted from there. Empty for no limit.
    observe
        Called with the tenant of every admitted request.
    """

    def __init__(
        self,
        keys: KeyRing | None,
        rate_limit: str,
        threads: DatabaseThreads,
        *,
        issuer: "OidcIssuer | None" = None,
        failure_limit: str = "",
        observe: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._keys = keys
        self._issuer = issuer
        self._threads = threads
        self._rates = RateWindows(rate_limit) if rate_limit else None
        self._failures = RateWindows(failure_limit) if failure_limit else None
        self._observe = observe
        self._known: OrderedDict[str, tuple[float, ApiKey | None]] = OrderedDict()
        self._noted: dict[str, float] = {}
        self._noting: set[asyncio.Task[None]] = set()
        self._everyone = Principal(tenant="default", scopes=frozenset(SCOPES), key_id=None)

    async def admit(
        self,
        token: str | None,
        scope: Scope,
        address: str = "",
        is_repeat: Callable[[str], Awaitable[bool]] | None = None,
    ) -> tuple[Principal, RateLeft | None]:
        """Return the principal of a token, and what is left of its tenant's rate limit if there is one.

        Parameters
        ----------
        address
            Network address of the caller.
        is_repeat
            Whether a tenant's request repeats an earlier one, which no rate limit refuses.

        Raises
        ------
        Unauthorized, Forbidden, RateLimited
            Without a valid key, without the scope, or beyond the rate limit.
        """
        principal = self._everyone if self._keys is None else await self._let_in(self._keys, token, address)
        if scope not in principal.scopes:
            held = ", ".join(sorted(principal.scopes)) or "none"
            raise Forbidden(f'this API key or token lacks the scope "{scope}"; it has: {held}')
        try:
            return principal, self.count(principal.tenant)
        except RateLimited as error:
            if is_repeat is None or not await is_repeat(principal.tenant):
                raise
            self._observe(principal.tenant)
            return principal, RateLeft(limit=error.limit or 0, remaining=0, reset_s=error.retry_after_s)

    def recognize(self, token: str | None, scope: Scope) -> Principal | None:
        """Return the principal of a token if ``admit`` would let it in without waiting; count nothing."""
        if self._keys is None:
            principal = self._everyone
        else:
            parts = _TOKEN.fullmatch(token or "")
            until, key = self._known.get(parts[1], _UNKNOWN) if parts else _UNKNOWN
            now = time.monotonic()
            if parts is None or key is None or until < now or self._noted.get(key.id, 0.0) <= now:
                return None
            try:
                principal = _holder(key, parts[2])
            except Unauthorized:
                return None
        if scope not in principal.scopes or (
            self._rates is not None and self._rates.is_full(principal.tenant)
        ):
            return None
        return principal

    def count(self, tenant: str) -> RateLeft | None:
        """Count a request; return what is left of the tenant's rate limit, if there is one.

        Raises
        ------
        RateLimited
            Beyond the rate limit.
        """
        left, rates = None, self._rates
        if rates is not None:
            count, reset_s = rates.count(tenant), rates.reset_s(tenant)
            if count > rates.most:
                raise RateLimited(f"the tenant sent more requests than {rates}", reset_s, rates.most)
            left = RateLeft(limit=rates.most, remaining=rates.most - count, reset_s=reset_s)
        self._observe(tenant)
        return left

    async def _let_in(self, keys: KeyRing, token: str | None, address: str) -> Principal:
        if token is None:
            raise Unauthorized("no API key was sent as Authorization: Bearer KEY")
        failures, origin = self._failures, _origin(address)
        if failures is not None and failures.is_full(origin) and not self._was_valid(token):
            reset_s = failures.reset_s(origin)
            raise RateLimited("too many invalid keys came from your address; try again later", reset_s)
        try:
            return await self._identify(keys, token)
        except Unauthorized:
            if failures is not None:
                failures.count(origin)
            raise

    async def _identify(self, keys: KeyRing, token: str) -> Principal:
        if self._issuer is not None and not token.startswith("pace_"):
            claims = await self._issuer.verify(token)
            scopes = frozenset(scope for scope in claims.scopes if scope in SCOPES)
            return Principal(tenant=claims.tenant, scopes=scopes, key_id=None, subject=claims.subject)
        parts = _TOKEN.fullmatch(token)
        key = None if parts is None else await self._find(keys, parts[1])
        principal = _holder(key, parts[2] if parts else "")
        assert principal.key_id is not None
        self._note_use(keys, principal.key_id)
        return principal

    async def is_valid(self, token: str | None) -> bool:
        """Whether a token is valid now: one that was let in may be revoked or expire during an answer."""
        try:
            if self._keys is not None:
                await self._identify(self._keys, token or "")
        except Unauthorized:
            return False
        return True

    async def _find(self, keys: KeyRing, key_id: str) -> ApiKey | None:
        now = time.monotonic()
        until, key = self._known.get(key_id, _UNKNOWN)
        if until < now:
            key = await self._threads.run(keys.find, key_id)
            self._known[key_id] = (now + _TRUST_S, key)
            self._known.move_to_end(key_id)
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return key

    def forget(self, key_id: str) -> None:
        """Look a key up again at its next use, because it was revoked."""
        self._known.pop(key_id, None)

    def _was_valid(self, token: str) -> bool:
        if self._issuer is not None and self._issuer.knows(token):
            return True
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return False
        _, key = self._known.get(parts[1], _UNKNOWN)
        return _is_secret(key, parts[2])

    def _note_use(self, keys: KeyRing, key_id: str) -> None:
        now = time.monotonic()
        if now < self._noted.get(key_id, 0.0):
            return
        if len(self._noted) > _MOST_KNOWN:
            self._noted.clear()
        self._noted[key_id] = now + _USE_NOTED_S
        # Nobody waits for it.
        noting = asyncio.create_task(self._store_use(keys, key_id))
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    async def _store_use(self, keys: KeyRing, key_id: str) -> None:
        try:
            await self._threads.run(keys.note_use, key_id)
        except Exception as error:
            log.warning("key-use-not-stored", key=key_id, error=brief(error))


def _holder(key: ApiKey | None, secret: str) -> Principal:
    """Return who has a key; raises Unauthorized if the secret is not its own, or it has expired."""
    if key is None or not _is_secret(key, secret):
        raise Unauthorized("the API key is not valid")
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        raise Unauthorized(f"the API key has expired at {key.expires_at.isoformat(timespec='seconds')}")
    return Principal(tenant=key.tenant, scopes=key.scopes, key_id=key.id)


def _is_secret(key: ApiKey | None, secret: str) -> bool:
    # The hash of a random 256-bit secret needs no salt and no slow hash function.
    given = sha256(secret.encode()).hexdigest()
    return key is not None and hmac.compare_digest(given, key.secret_sha256)


def _origin(address: str) -> str:
    # The owner of an IPv6 address has at least a /64 network of them.
    try:
        if ip_address(address).version == 6:
            return str(ip_network(f"{address}/64", strict=False))
    except ValueError:
        pass
    return address

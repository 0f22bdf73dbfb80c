"""Who asks, and what they may: API keys, their scopes, and limits on how often they ask."""

import hmac
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256

from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from pace.api.errors import Forbidden, RateLimited, Unauthorized
from pace.api.storage.keys import SCOPES, ApiKey, KeyRing, Scope
from pace.api.storage.threads import DatabaseThreads

_TOKEN = re.compile(r"pace_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who sent a request.

    Attributes
    ----------
    tenant
        Whose data it may see: no other.
    key_id
        The API key's id; None when keys are off.
    """

    tenant: str
    scopes: frozenset[Scope]
    key_id: str | None


class AccessControl:
    """Lets requests in.

    Parameters
    ----------
    keys
        None lets everyone in, as the tenant "default": only for a service on loopback.
    rate_limit
        How often a tenant may ask, such as "6000/minute"; empty for no limit.
    threads
        In which keys are looked up.
    trust_s
        How long a key that was found valid is not looked up again: a revoked key works so long.
    """

    def __init__(
        self, keys: KeyRing | None, rate_limit: str, threads: DatabaseThreads, trust_s: float = 5.0
    ) -> None:
        self._keys = keys
        self._threads = threads
        self._rate_limit = parse(rate_limit) if rate_limit else None
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._trust_s = trust_s
        self._known: OrderedDict[str, tuple[float, ApiKey | None]] = OrderedDict()
        self._everyone = Principal(tenant="default", scopes=frozenset(SCOPES), key_id=None)

    async def admit(self, token: str | None, scope: Scope) -> Principal:
        """Return who holds a token.

        Raises
        ------
        Unauthorized, Forbidden, RateLimited
            Without a valid key, without the scope, or if they ask too often.
        """
        principal = self._everyone if self._keys is None else await self._identify(self._keys, token)
        if scope not in principal.scopes:
            detail = f'this API key lacks the scope "{scope}"; it has: {", ".join(sorted(principal.scopes))}'
            raise Forbidden(detail)
        if self._rate_limit is not None and not self._limiter.hit(self._rate_limit, principal.tenant):
            reset_at = self._limiter.get_window_stats(self._rate_limit, principal.tenant).reset_time
            retry_after_s = max(1, round(reset_at - time.time()))
            raise RateLimited(f"more requests than {self._rate_limit}", retry_after_s)
        return principal

    async def _identify(self, keys: KeyRing, token: str | None) -> Principal:
        parts = None if token is None else _TOKEN.fullmatch(token)
        key = None if parts is None else await self._find(keys, parts[1])
        # The hash of a random 256-bit secret needs no salt and no slow hash function.
        given = sha256((parts[2] if parts else "").encode()).hexdigest()
        if key is None or not hmac.compare_digest(given, key.secret_sha256):
            what = "no API key was sent" if token is None else "the API key is not valid"
            raise Unauthorized(what)
        return Principal(tenant=key.tenant, scopes=key.scopes, key_id=key.id)

    async def _find(self, keys: KeyRing, key_id: str) -> ApiKey | None:
        now = time.monotonic()
        until, key = self._known.get(key_id, (0.0, None))
        if until < now:
            key = await self._threads.run(keys.find, key_id)
            self._known[key_id] = (now + self._trust_s, key)
            self._known.move_to_end(key_id)
            if len(self._known) > 10_000:
                self._known.popitem(last=False)
        return key

"""An OpenID Connect issuer of the tests' own: real keys, real signatures, served over HTTP on loopback."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "https://pace.example"


class TestIssuer:
    """Signs tokens with keys that it publishes, and counts how often it is asked for these."""

    __test__ = False

    def __init__(self) -> None:
        self.keys: dict[str, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey] = {}
        self.published: list[dict[str, Any]] = []
        self.num_fetched = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                documents: dict[str, dict[str, Any]] = {
                    "/.well-known/openid-configuration": {
                        "issuer": issuer.url,
                        "jwks_uri": f"{issuer.url}/keys",
                    },
                    "/keys": {"keys": issuer.published},
                }
                issuer.num_fetched += self.path == "/keys"
                self.send_response(200 if self.path in documents else 404)
                self.end_headers()
                self.wfile.write(json.dumps(documents.get(self.path, {})).encode())

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  (its base class's)
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.add_key("first")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add_key(self, name: str, *, elliptic: bool = False, publish: bool = True) -> None:
        """Make a key and publish its public part."""
        if elliptic:
            self.keys[name] = curve = ec.generate_private_key(ec.SECP256R1())
            public = json.loads(ECAlgorithm.to_jwk(curve.public_key()))
        else:
            self.keys[name] = large = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            public = json.loads(RSAAlgorithm.to_jwk(large.public_key()))
        if publish:
            self.published.append({**public, "kid": name, "use": "sig"})

    def token(self, *, key: str = "first", algorithm: str = "RS256", **claims: Any) -> str:
        """Sign a token for a reader and submitter of the tenant "vision", with these claims besides."""
        values = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "robot",
            "exp": time.time() + 600,
            "tenant": "vision",
            "scope": "openid pace:read pace:submit",
            **claims,
        }
        return jwt.encode(
            {name: value for name, value in values.items() if value is not None},
            self.keys[key],
            algorithm=algorithm,
            headers={"kid": key},
        )

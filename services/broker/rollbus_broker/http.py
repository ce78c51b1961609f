"""/metrics, /healthz and /readyz, served by a thread of its own: on loopback, beyond it for a bearer token.

The thread reads the `Snapshot` in ``box[0]``, which the loop replaces as a whole.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from prometheus_client import make_asgi_app

from rollbus_broker.metrics import Snapshot, collector_registry
from rollbus_wire.errors import BindRefused, ConfigError
from rollbus_wire.sockets import is_loopback

_STOP_S = 2.0
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class HttpServer:
    """Serves ``address`` ("HOST:PORT", port 0: any) until `stop`; ``url`` is where.

    ``token``: what every request must bear; needed beyond loopback. `denied` counts requests without it.
    """

    def __init__(self, address: str, box: list[Snapshot], token: bytes = b"") -> None:
        self.denied = 0
        self._token = token
        self._socket = _bind(address, with_token=bool(token))
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        config = uvicorn.Config(
            self._guarded(_app(box)), loop="uvloop", lifespan="off", log_config=None, access_log=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="http", daemon=True
        )
        self._thread.start()

    def _guarded(self, app: Any) -> Any:
        """``app`` for those who bear the token; all others learn nothing, not even which paths there are."""
        if not self._token:
            return app

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and not _bears(scope, self._token):
                self.denied += 1
                await _answer(send, 401, {"error": "this needs the header Authorization: Bearer TOKEN"})
            else:
                await app(scope, receive, send)

        return guarded

    def stop(self) -> None:
        """End the thread and close the socket."""
        self._server.should_exit = True
        self._thread.join(_STOP_S)
        self._socket.close()


def _bears(scope: Scope, token: bytes) -> bool:
    """Whether the request has the token; how long this takes does not tell how much of it is right."""
    given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    scheme, _, said = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return scheme.lower() == b"bearer" and hmac.compare_digest(said.strip(), token)


def _bind(address: str, *, with_token: bool) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise ConfigError(f"broker.http is {address!r}; give HOST:PORT, or leave it empty for none")
    if not (with_token or is_loopback(host)):
        raise BindRefused(
            f"broker.http {address} is reachable from other machines, which needs keys, here a token: make "
            "one with `rollbus keys token` and set broker.http_token to its file, or listen on 127.0.0.1 and "
            "use a tunnel"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise BindRefused(
            f"broker.http {address} cannot be bound: {error.strerror}; stop what uses it, choose "
            "another port, or 127.0.0.1:0 for a free one"
        ) from None
    return listener


def _app(box: list[Snapshot]) -> Any:
    metrics = make_asgi_app(collector_registry(box))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"].rstrip("/")
        if path == "/metrics":
            await metrics(scope, receive, send)
        elif path == "/healthz":
            await _answer(send, 200, {"status": "ok", "boot": box[0].boot})
        elif path == "/readyz":
            missing = box[0].missing()
            status = "waiting" if missing else "ready"
            await _answer(send, 503 if missing else 200, {"status": status, "missing": missing})
        else:
            await _answer(send, 404, {"paths": ["/metrics", "/healthz", "/readyz"]})

    return app


async def _answer(send: Send, status: int, data: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(data).encode() + b"\n"})

"""A replica of the server: `moesaic serve` on its node, and the bytes to and from it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import secrets
import signal
import socket
import sys
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, AsyncIterator, Mapping, Sequence

from .._engine import command
from .._errors import UnavailableError
from . import _affinity
from ._library import load
from ._runner import node_environment, tied

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Of the connection, and not of what is sent over it; the other side has its own.
_HOP_BY_HOP = frozenset(
    "connection content-length expect host keep-alive proxy-authenticate proxy-connection te trailer transfer-encoding upgrade".split()
)
_LOG_LINES = 50
# Requests whose experts routers can still learn from: enough for all that end between two times that they look.
_MOST_ENDED = 16
# Those that may be under way without having been seen to end.
_MOST_OPEN = 4096
# A free port may be taken by another process before the server has it.
_PORTS = 5
# After SIGTERM, when no request runs any more: the server writes what it has learned.
_LEAVE_S = 30.0
_COUNTERS = re.compile(r"^(moe_(?:expert|prefix|prompt|generation|request_success)\w*_total)(?:\{(.*)\})? (\S+)$", re.M)


@dataclass(frozen=True)
class Request:
    """What came over HTTP. `prompt` is None for what is no request for an answer."""

    method: str
    target: str  # path and query
    headers: tuple[tuple[str, str], ...]
    body: bytes
    prompt: _affinity.Prompt | None = None


class Replica:
    """A deployment of Ray Serve. It is there when its server is ready.

    Args:
        arguments: Of `moesaic serve`: the model and settings.
        environment: The driver's settings (MOESAIC_...).
        directory: The driver's working directory, used where it is here, too.
        cpus: The CPUs that it has on this node.
        watch: Whether routers are told of experts.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], directory: str, cpus: float, watch: bool = True
    ) -> None:
        words = list(arguments)
        if 1 <= cpus < (os.cpu_count() or 1) and not any(word.split("=")[0] == "--threads" for word in words):
            words += ["--threads", str(int(cpus))]
        self._words = [str(command()), "serve", *words, "--host", "127.0.0.1", "--port"]
        self._environment = node_environment(environment)
        self._key = _own_key(words, self._environment)
        self._working = directory if os.path.isdir(directory) else None
        self._watching = watch
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._url = ""
        self._session: Any = None
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []  # held, as the loop does not
        self._watcher: asyncio.Task[None] | None = None
        self._serves = False
        # Of requests that run, by their name in the server: their words.
        self._open: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._ended: deque[tuple[int, list[int], str]] = deque(maxlen=_MOST_ENDED)
        self._count = 0
        self._seen: deque[int] = deque(maxlen=64)
        self._held: npt.NDArray[np.bool_] | None = None
        self._load = {"running": 0.0, "waiting": 0.0, "kv_usage": 0.0}

    async def start(self) -> None:
        """Returns when the server can answer.

        Raises:
            UnavailableError: It ended, with what it said last.
        """
        aiohttp = load("aiohttp")
        self._session = aiohttp.ClientSession(
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        for _ in range(_PORTS):
            if await self._begin(_free_port()):
                break
        else:
            raise UnavailableError(self._why_ended())
        self._serves = True
        if self._watching:
            self._watcher = asyncio.create_task(self._watch())

    async def relay(self, request: Request) -> AsyncIterator[Any]:
        """Yields the status and the headers, then the body's bytes as they come. Who leaves ends the request in the server.

        Raises:
            UnavailableError: The server is gone, before or in the middle of the answer.
        """
        aiohttp = load("aiohttp")
        headers = [(name, value) for name, value in request.headers if name.lower() not in _HOP_BY_HOP]
        name = next((value for header, value in headers if header.lower() == "x-request-id"), "")
        if request.prompt is not None and self._watching:
            if not name:
                name = f"ray-{uuid.uuid4().hex}"
                headers.append(("X-Request-Id", name))
            self._open[name] = request.prompt.words
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        try:
            call = self._session.request(
                request.method, self._url + request.target, headers=headers, data=request.body or None, allow_redirects=False
            )
            async with call as response:
                kept = [(key, value) for key, value in response.headers.items() if key.lower() not in _HOP_BY_HOP]
                yield response.status, kept
                async for data in response.content.iter_any():
                    yield data
        except aiohttp.ClientError as error:
            raise UnavailableError(f"the server of this replica is gone ({type(error).__name__}: {error})") from None

    def check_health(self) -> None:
        """Asked by Serve, which replaces a replica whose server has ended."""
        if self._process is None or self._process.returncode is not None:
            raise UnavailableError(self._why_ended())

    def record_routing_stats(self) -> dict[str, Any]:
        """For routers: which experts are in memory, and the words and experts of the requests that ended last."""
        if self._held is None:
            return {}
        return {"experts": self._held.size, "held": _affinity.pack_bits(self._held), "ended": list(self._ended)}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """For policies of autoscaling: requests that run and wait in the server, and the share of the memory for keys and
        values that is used, at most a quarter of a second ago."""
        return dict(self._load)

    async def describe(self) -> dict[str, Any]:
        """Who this is, and what its server has counted since it started."""
        counters: dict[str, float] = {}
        status, text = await self._get("/metrics")
        for name, labels, value in _COUNTERS.findall(text) if status == 200 else ():
            labels = re.sub(r'(?:^|,)model_name="[^"]*"', "", labels).strip(",")
            counters[f"{name}{{{labels}}}" if labels else name] = float(value)
        return {
            "host": socket.gethostname(),
            "node": load().get_runtime_context().get_node_id(),
            "pid": os.getpid(),
            "server_pid": self._process.pid if self._process else None,
            "learned": self._count,
            "experts_held": None if self._held is None else int(self._held.sum()),
            **self._load,
            "counters": counters,
        }

    async def stop(self) -> None:
        """Lets the server end what runs and write what it has learned."""
        self._serves = False
        if self._watcher is not None:
            self._watcher.cancel()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), _LEAVE_S)
            except asyncio.TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._session is not None:
            await self._session.close()

    # The server.

    async def _begin(self, port: int) -> bool:
        """False: another process was faster in taking the port."""
        self._url = f"http://127.0.0.1:{port}"
        self._process = await asyncio.create_subprocess_exec(
            *tied([*self._words, str(port)]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            cwd=self._working,
            start_new_session=True,
        )
        reading = asyncio.create_task(self._read_log(self._process))
        self._tasks.append(reading)
        while not await self._is_ready():
            if reading.done():
                if any("in use" in line for line in self._log):
                    return False
                raise UnavailableError(self._why_ended())
            await asyncio.sleep(0.05)
        return True

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for raw in process.stderr:
            self._log.append(raw.decode(errors="replace").rstrip())
            print(self._log[-1], file=sys.stderr, flush=True)  # into Ray's log of this replica
        await process.wait()
        if self._serves:
            # With its actor, whose end Ray sees at once: what runs is told, and another replica is begun. Until a probe
            # has seen it, requests would come here and fail.
            print(f"moesaic.ray.serve: {self._why_ended()}", file=sys.stderr, flush=True)
            os._exit(1)

    def _why_ended(self) -> str:
        code = self._process.returncode if self._process else None
        return f"moesaic serve ended with {code}: " + "\n".join(list(self._log)[-10:])

    async def _is_ready(self) -> bool:
        try:
            return (await self._get("/ready"))[0] == 200
        except load("aiohttp").ClientError:
            return False

    async def _get(self, target: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        async with self._session.get(self._url + target, headers=headers) as response:
            return response.status, await response.text()

    # Its experts.

    async def _watch(self) -> None:
        """Reads what the engine does as the server's page does. Requests are not hurt by what goes wrong here."""
        aiohttp = load("aiohttp")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        while True:
            try:
                async with self._session.get(self._url + "/v1/moesaic/events", headers=headers) as response:
                    async for line in _lines(response.content):
                        if line.startswith(b"data: {"):
                            await self._take(json.loads(line[6:]))
            except (aiohttp.ClientError, KeyError, ValueError) as error:
                print(f"moesaic.ray.serve: experts are not seen ({error})", file=sys.stderr, flush=True)
            await asyncio.sleep(1)

    async def _take(self, sample: Mapping[str, Any]) -> None:
        import numpy as np

        if "places" not in sample:
            return
        self._load = {name: float(sample[name]) for name in ("running", "waiting", "kv_usage")}
        self._held = np.frombuffer(base64.b64decode(sample["places"]), np.uint8) == 1
        for request in sample["requests"]:
            if request["phase"] != "ended" or request["id"] in self._seen:
                continue
            self._seen.append(request["id"])
            words = self._open.pop(request["request_id"], None)
            if words:
                await self._learn(request["id"], words)

    async def _learn(self, request: int, words: tuple[int, ...]) -> None:
        import numpy as np

        status, text = await self._get(f"/v1/moesaic/requests/{request}?nearest=false")
        if status != 200:
            return  # others have ended since
        experts = json.loads(text)
        uses = np.array(experts["prefill"], np.int64) + np.array(experts["decode"], np.int64)
        self._count += 1
        self._ended.append((self._count, list(words), _affinity.pack_uses(uses.reshape(-1))))


def _own_key(words: Sequence[str], environment: dict[str, str]) -> str:
    """A key for what the replica asks of its server, where that wants keys. It is added to the environment, which others
    cannot read."""
    flags = [word.split("=")[0] for word in words]
    given = environment.get("MOESAIC_API_KEY", "")
    for name, following in zip(flags, [*words[1:], ""]):
        if name == "--api-key":
            raise ValueError("keys of servers on a cluster come from api_key_file or from MOESAIC_API_KEY")
    if not given and "--api-key-file" not in flags and "MOESAIC_API_KEY_FILE" not in environment:
        return ""
    key = secrets.token_urlsafe(24)
    environment["MOESAIC_API_KEY"] = f"{given},{key}" if given else key
    return key


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def _lines(content: Any) -> AsyncIterator[bytes]:
    """Lines of any length."""
    rest = b""
    async for data in content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line

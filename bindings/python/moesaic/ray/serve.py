"""The server on the nodes of a Ray cluster, by Ray Serve.

    from ray import serve
    from moesaic.ray.serve import application

    serve.run(application("models/sample", replicas=2, expert_memory="25%"), name="moesaic")

or ``python -m moesaic.ray.serve MODEL --replicas 2 --expert-memory 25%``. Each replica is a `moesaic serve` with the whole
model; an ingress takes requests over HTTP and sends each to the replica that is likely to have its beginning in the prefix
cache and its experts in memory. Nodes, replicas, health, scaling and drain are Serve's. docs/ray.md has the rest.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import subprocess
import sys
import threading
from typing import Any, Mapping, Sequence

from .._engine import command, settings_text
from .._errors import InvalidArgumentError
from ._driver import connect, error_of, status_of, warn
from ._ingress import Ingress
from ._library import load
from ._replica import Replica

POLICIES = ("affinity", "round-robin")
# Of `moesaic serve`: what a replica decides itself, and what is not of all replicas together.
_REFUSED = ("host", "port", "batch_dir", "models", "allowed_hosts", "ssl_certfile", "ssl_keyfile", "insecure", "api_key")


class _Server(Replica):
    """As Serve makes and ends it."""

    async def __init__(self, *arguments: Any, **keywords: Any) -> None:  # type: ignore[misc]
        super().__init__(*arguments, **keywords)
        await self.start()

    async def __del__(self) -> None:
        await self.stop()


def application(
    model: str | os.PathLike[str],
    *,
    replicas: int | None = None,
    autoscaling: Mapping[str, Any] | None = None,
    cpus_per_replica: float = 1,
    gpus_per_replica: float = 0,
    policy: str = "affinity",
    prefix_weight: float = 1.0,
    expert_weight: float = 1.0,
    slack: int = 2,
    max_ongoing_requests: int = 256,
    drain_s: float = 120.0,
    learn_every_s: float = 1.0,
    max_body: int = 64 << 20,
    **settings: Any,
) -> Any:
    """An application for ``ray.serve.run``.

    Args:
        model: A directory, a GGUF file or an id, that is on every node.
        replicas: How many; one where nothing is said.
        autoscaling: In its place: what Serve's ``autoscaling_config`` takes. Policies have ``running``, ``waiting`` and
            ``kv_usage`` of each server among their metrics.
        cpus_per_replica, gpus_per_replica: What Ray reserves; the engine takes as many threads.
        policy: "affinity", or "round-robin" for all replicas in turn.
        prefix_weight, expert_weight: What it is worth that a replica has the whole beginning of a prompt, and all experts
            that a request is expected to use. 0 leaves it out.
        slack: A replica with so many more requests than another one is not preferred to it.
        max_ongoing_requests: Of one replica, running and waiting; more wait in the ingress.
        drain_s: How long a replica that is to leave may go on with its requests.
        learn_every_s: How often routers ask replicas for their experts.
        max_body: Bytes of the largest body.
        settings: Of `moesaic serve`, as those of ``moesaic.LLM``.

    Returns:
        A ``ray.serve.Application``.
    """
    if policy not in POLICIES:
        raise InvalidArgumentError(f"policy: '{policy}' is not known; there are {', '.join(POLICIES)}")
    if replicas is not None and autoscaling is not None:
        raise InvalidArgumentError("replicas and autoscaling were both given")
    for name in settings:
        if name in _REFUSED:
            raise InvalidArgumentError(f"{name}: replicas have none of their own; docs/ray.md says what there is in its place")
    words = [os.fspath(model), *(f"--{name}={text}" for name, text in settings_text(settings))]
    environment = {name: value for name, value in os.environ.items() if name.startswith("MOESAIC_")}
    _check_settings(words)

    serve = load("ray.serve")
    config = load("ray.serve.config")
    learns = policy == "affinity" and expert_weight > 0
    router = config.RequestRouterConfig(
        request_router_class="moesaic.ray._router.MoesaicRouter",
        request_router_kwargs={
            "policy": policy, "prefix_weight": prefix_weight, "expert_weight": expert_weight, "slack": slack,
        },
        request_routing_stats_period_s=learn_every_s,
    )
    scale: dict[str, Any] = {"num_replicas": replicas or 1}
    if autoscaling is not None:
        scale = {"autoscaling_config": dict(autoscaling)}
    servers = serve.deployment(
        _Server,
        name="server",
        ray_actor_options={"num_cpus": cpus_per_replica, "num_gpus": gpus_per_replica},
        max_ongoing_requests=max_ongoing_requests,
        graceful_shutdown_timeout_s=drain_s,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=5,
        request_router_config=router,
        **scale,
    ).bind(words, environment, os.getcwd(), cpus_per_replica, learns)
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="ingress",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=100_000,
        graceful_shutdown_timeout_s=drain_s,
        graceful_shutdown_wait_loop_s=0.5,
    )
    return ingress.bind(servers, max_body)


def _check_settings(words: Sequence[str]) -> None:
    """What every replica would end with."""
    if not command().exists():
        return
    done = subprocess.run([str(command()), "serve", *words, "--print-config"], capture_output=True, text=True)
    if done.returncode:
        raise InvalidArgumentError(error_of(done.stderr) or f"moesaic serve ended with {done.returncode}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m moesaic.ray.serve",
        usage="%(prog)s MODEL [options] [settings of moesaic serve]",
        description="Serve a model on the nodes of a Ray cluster. Settings that are not listed here are those of `moesaic serve`, "
        "and go to each replica.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", help="a directory, a file or an id that is on every node")
    add("--ray", default="auto", metavar="ADDRESS", help="HOST:PORT, or auto for the cluster that runs here")
    add("--name", default="moesaic", help="of the application, in Serve")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on, on every node with a replica")
    add("--port", type=int, default=8000, metavar="N", help="port to listen on")
    add("--replicas", type=int, metavar="N", help="servers (default: 1)")
    add("--min-replicas", type=int, metavar="N", help="scale by the requests that run, from so many servers on")
    add("--max-replicas", type=int, metavar="N", help="up to so many")
    add("--target-requests", type=float, default=8, metavar="N", help="requests of each server that scaling aims at")
    add("--cpus", type=float, default=1, metavar="N", help="CPUs of each server (default: 1)")
    add("--gpus", type=float, default=0, metavar="N", help="GPUs of each server")
    add("--policy", choices=POLICIES, default="affinity", help="who gets a request (default: affinity)")
    add("--prefix-weight", type=float, default=1.0, metavar="W", help="what a prompt in the prefix cache is worth")
    add("--expert-weight", type=float, default=1.0, metavar="W", help="what predicted experts in memory are worth")
    add("--slack", type=int, default=2, metavar="N", help="requests that a preferred server may have more than others")
    add("--insecure", action="store_true", help="listen on an address that others can reach without keys")
    add("--drain", type=float, default=120, metavar="SECONDS", help="for the requests of a server that is to leave")
    return parser


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """Flags of `moesaic serve` as keywords; one that comes again makes a list."""
    settings: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise InvalidArgumentError(f"'{word}' is neither the model nor a flag")
        name, has_value, value = word[2:].partition("=")
        if not has_value:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        key = name.replace("-", "_")
        settings[key] = [*settings[key], value] if key in settings else [value]
    return settings


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _has_keys(settings: Mapping[str, Any]) -> bool:
    return "api_key_file" in settings or any(os.environ.get(name) for name in ("MOESAIC_API_KEY", "MOESAIC_API_KEY_FILE"))


def run(arguments: Sequence[str]) -> None:
    """Serves until SIGINT or SIGTERM, then lets requests end.

    Raises:
        Error: The arguments are wrong, or there is no cluster.
    """
    flags, rest = _parser().parse_known_args(arguments)
    autoscaling = None
    if flags.min_replicas is not None or flags.max_replicas is not None:
        least = 1 if flags.min_replicas is None else flags.min_replicas
        most = max(1, least) if flags.max_replicas is None else flags.max_replicas
        autoscaling = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": flags.target_requests}
    settings = _settings(rest)
    if not flags.insecure and not _is_loopback(flags.host) and not _has_keys(settings):
        raise InvalidArgumentError(
            f"--host {flags.host} can be reached by others, and there are no keys: give --api-key-file or MOESAIC_API_KEY, listen on "
            "127.0.0.1, or say --insecure"
        )
    made = application(
        flags.model,
        replicas=flags.replicas,
        autoscaling=autoscaling,
        cpus_per_replica=flags.cpus,
        gpus_per_replica=flags.gpus,
        policy=flags.policy,
        prefix_weight=flags.prefix_weight,
        expert_weight=flags.expert_weight,
        slack=flags.slack,
        drain_s=flags.drain,
        **settings,
    )
    stop = threading.Event()
    connect(flags.ray)
    serve = load("ray.serve")
    serve.start(proxy_location="EveryNode", http_options={"host": flags.host, "port": flags.port})
    serve.run(made, name=flags.name, route_prefix="/")
    for number in (signal.SIGINT, signal.SIGTERM):  # Ray has its own idea of SIGTERM
        signal.signal(number, lambda *_: stop.set())
    warn(f"serving {flags.model} on http://{flags.host}:{flags.port}")
    stop.wait()
    serve.delete(flags.name)


def main() -> None:
    """The command."""
    sys.exit(status_of(lambda: run(sys.argv[1:])))


if __name__ == "__main__":
    main()

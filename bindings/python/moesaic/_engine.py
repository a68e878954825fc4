"""What LLM and AsyncLLM have in common: an engine made of settings, and requests for it."""

from __future__ import annotations

import os
import pathlib
import sysconfig
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence, TypeVar, Union

from . import _core
from ._errors import InvalidArgumentError
from ._outputs import Gathering
from ._params import SamplingParams, dump_body

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# A prompt: a text, token ids, or one of these under vLLM's names.
Prompt = Union[str, Sequence[int], Mapping[str, Any]]
Messages = Sequence[Mapping[str, Any]]


def command() -> pathlib.Path:
    """The moesaic command that goes with the module, whether or not it is there: of an installed
    package, or of a build tree (build/release/python/moesaic)."""
    package = pathlib.Path(__file__).resolve().parent
    built = package.parents[1] / "bin" / "moesaic"
    return built if package.parent.name == "python" and built.exists() else pathlib.Path(sysconfig.get_path("scripts"), "moesaic")


def environment() -> list[str]:
    return [f"{name}={value}" for name, value in os.environ.items()]


def settings_text(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings as the command line has them: a name and a text each."""
    pairs = []
    for name, value in settings.items():
        if value is None:
            continue
        values = value if isinstance(value, (list, tuple)) else [value]
        for one in values:
            if isinstance(one, bool):
                text = "true" if one else "false"
            elif isinstance(one, (str, int, float, os.PathLike)):
                text = os.fspath(one) if isinstance(one, os.PathLike) else str(one)
            else:
                raise InvalidArgumentError(f"{name}: a setting is a text, a number, a bool or a list of these, it is a {type(one).__name__}")
            pairs.append((name.replace("_", "-"), text))
    return pairs


# What throughput mode is planned for when nothing is said of the job.
_WORKLOAD = "prompt=512,gen=256,requests=256"


def _workload(mode: str, workload: str | None) -> str:
    if mode == "throughput":
        return workload or _WORKLOAD
    if mode != "latency":
        raise InvalidArgumentError(f"mode: '{mode}' is not known; use latency or throughput")
    if workload is not None:
        raise InvalidArgumentError("workload: is for mode='throughput', which is planned for it")
    return ""


_Engine = TypeVar("_Engine", bound="EngineBase")


class EngineBase:
    """An engine. It holds memory and threads until ``close``, the end of a with-statement, or the end
    of its last reference."""

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        config: str | os.PathLike[str] | None = None,
        mode: str = "latency",
        workload: str | None = None,
        **settings: Any,
    ) -> None:
        pairs = settings_text({"model": model, **settings})
        file = "" if config is None else os.fspath(config)
        self._core = _core.Engine(pairs, file, environment(), command(), _workload(mode, workload))
        self._requests = 0

    @property
    def model(self) -> str:
        """The model, as it was named."""
        return self._core.model

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer that one request may have."""
        return self._core.max_model_len

    def stats(self) -> dict[str, Any]:
        """What the engine has done since it started, and what it holds: counts of steps, of tokens
        (prefill and decode), of experts found in memory (hits), still being read (late hits) and
        missing; bytes read; microseconds of its parts (``*_us``); requests that run and wait;
        ``kv_usage`` from 0 to 1."""
        return self._core.stats()

    def residency(self) -> npt.NDArray[np.uint8]:
        """Which experts are in fast memory now: uint8 [layers, experts], 1 for those. Layers without
        experts are zeros."""
        return self._core.residency()

    def ledger(self) -> list[dict[str, Any]]:
        """What was planned of each memory before anything was allocated, the host's first, then those
        of devices: ``memory``, ``limit_bytes`` (None: no limit), ``total_bytes`` and ``items``, bytes
        by name."""
        return self._core.ledgers()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text, with those that the model wants around it (BOS)."""
        return self._core.encode(text, add_special_tokens)

    @property
    def special_tokens(self) -> dict[str, int | None]:
        """The ids of ``bos``, ``eos``, ``unk`` and ``pad``; None where the model's files name none."""
        return self._core.special_tokens

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens."""
        return self._core.decode(list(token_ids), skip_special_tokens)

    @property
    def closed(self) -> bool:
        """Nothing more can be asked of it."""
        return self._core.closed

    def __enter__(self: _Engine) -> _Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends what runs, and frees memory and threads before it returns. Twice does nothing."""
        self._core.close()

    # Requests.

    def _next_id(self, request_id: str | None) -> str:
        if request_id is not None:
            return request_id
        self._requests += 1
        return str(self._requests - 1)

    def _prepare(self, body: dict[str, Any], chat: bool, request_id: str, params: SamplingParams) -> Any:
        return self._core.prepare(
            dump_body(body),
            chat,
            request_id,
            params.max_tokens is None,
            params.return_routed_experts,
        )

    def _prepare_prompt(self, prompt: Prompt, params: SamplingParams, request_id: str) -> tuple[Any, Gathering]:
        text, value = _split_prompt(prompt)
        prepared = self._prepare({**params._body(False), "prompt": value}, False, request_id, params)
        return prepared, self._gathering(prepared, params, request_id, text)

    def _prepare_chat(
        self, messages: Messages, params: SamplingParams, request_id: str, fields: Mapping[str, Any]
    ) -> tuple[Any, Gathering]:
        given = {name: value for name, value in fields.items() if value is not None}
        body = {**params._body(True), **given, "messages": list(messages)}
        prepared = self._prepare(body, True, request_id, params)
        if prepared.unknown_fields:
            name = prepared.unknown_fields[0]
            raise InvalidArgumentError(f"chat() has no argument {name!r}, and a request no such field")
        return prepared, self._gathering(prepared, params, request_id, None)

    def _gathering(self, prepared: Any, params: SamplingParams, request_id: str, text: str | None) -> Gathering:
        return Gathering(
            request_id, text, prepared.prompt_token_ids, prepared.choices, params, self._core.token_text
        )


def _split_prompt(prompt: Prompt) -> tuple[str | None, Any]:
    """The prompt's text, where it has one, and what a request has in its place."""
    if isinstance(prompt, str):
        return prompt, prompt
    if isinstance(prompt, Mapping):
        if prompt.get("prompt_token_ids") is not None:
            return prompt.get("prompt"), _token_ids(prompt["prompt_token_ids"])
        if isinstance(prompt.get("prompt"), str):
            return prompt["prompt"], prompt["prompt"]
        raise InvalidArgumentError("a prompt that is a dict has 'prompt' (a text) or 'prompt_token_ids'")
    return None, _token_ids(prompt)


def _token_ids(tokens: Any) -> list[int]:
    values = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    if not values:
        raise InvalidArgumentError("prompt has no tokens.")
    return values


def is_one_prompt(prompts: Any) -> bool:
    """A single prompt, and no list of them."""
    if isinstance(prompts, (str, Mapping)):
        return True
    first = next(iter(prompts), None)
    return first is not None and not isinstance(first, (str, Mapping)) and not _is_list(first)


def _is_list(value: Any) -> bool:
    return hasattr(value, "__iter__") and getattr(value, "ndim", 1) > 0

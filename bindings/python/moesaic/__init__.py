"""Moesaic: mixture-of-experts language models that are larger than fast memory.

    from moesaic import LLM, SamplingParams

    with LLM("models/sample", expert_memory="25%") as llm:
        for output in llm.generate(["The old man"], SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)
"""

from ._async import AsyncLLM
from ._core import version as __version__
from ._errors import (
    CorruptError,
    Error,
    InternalError,
    InvalidArgumentError,
    IoError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    UnsupportedError,
)
from ._jobs import plan, simulate
from ._llm import LLM
from ._moe import MoE
from ._outputs import CompletionOutput, Logprob, RequestOutput
from ._params import RequestOutputKind, SamplingParams
from ._traces import EamCollection, RoutingTrace, TraceSequence, read_trace, write_trace

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "CorruptError",
    "EamCollection",
    "Error",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "Logprob",
    "MoE",
    "NotFoundError",
    "RequestOutput",
    "RequestOutputKind",
    "ResourceExhaustedError",
    "RoutingTrace",
    "SamplingParams",
    "TraceSequence",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "plan",
    "read_trace",
    "simulate",
    "write_trace",
]

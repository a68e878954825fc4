"""Datasets of ray.data through an engine in each actor."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Mapping

from .._errors import InvalidArgumentError
from .._llm import LLM
from .._outputs import RequestOutput
from .._params import SamplingParams
from ._library import load

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Batches that an actor works on at the same time: while the last sequences of one end, those of the next one join, so
# that passes stay large.
_IN_FLIGHT = 2


class MoesaicProcessor:
    """A class for ``ray.data.Dataset.map_batches``: it loads the model once, and answers batches.

    Calls from several threads run side by side in the same passes, so that an actor should have two batches under way;
    ``moesaic.ray.process`` sets a dataset up so. A batch is best as large as what runs at a time (256 and more).

    Args:
        model: A directory, a GGUF file or an id, that is on every node.
        prompt_column: Texts, which are continued.
        messages_column: In its place: conversations in OpenAI's shape, which go through the model's template.
        output_column: Where the answers go.
        id_column: Requests that sample get their seed from it (and ``seed`` of the engine's settings), so that a batch
            that is done again, on another node, has the same answers.
        sampling_params: Of all rows; its fields as a dict will do.
        mode, workload, settings: As those of ``moesaic.LLM``; throughput mode unless said otherwise.
    """

    def __init__(
        self,
        model: str,
        *,
        prompt_column: str = "prompt",
        messages_column: str | None = None,
        output_column: str = "generated_text",
        id_column: str | None = None,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        mode: str = "throughput",
        workload: str | None = None,
        **settings: Any,
    ) -> None:
        self._prompts = prompt_column
        self._messages = messages_column
        self._output = output_column
        self._ids = id_column
        self._seed = int(settings.get("seed") or 0)
        if isinstance(sampling_params, SamplingParams):
            self._params = sampling_params
        else:
            self._params = SamplingParams(**(sampling_params or {}))
        self._llm = LLM(model, mode=mode, workload=workload, **settings)

    def __call__(self, batch: dict[str, npt.NDArray[np.generic]]) -> dict[str, Any]:
        """Answers a batch.

        Args:
            batch: Columns, each an array of as many rows.

        Returns:
            The columns with four more: the output column (text of the first answer), ``finish_reason``,
            ``prompt_tokens`` and ``output_tokens``, in the order of the rows.

        Raises:
            Error: A row is at fault, or the engine failed; the batch has no answers then.
        """
        import numpy as np

        column = self._messages or self._prompts
        if column not in batch:
            raise InvalidArgumentError(f"the dataset has no column {column!r}; it has {', '.join(map(repr, batch))}")
        rows = batch[column].tolist()
        params = self._params_of(batch, len(rows))
        if self._messages:
            outputs = self._llm.chat([_conversation(row) for row in rows], params)
        else:
            outputs = self._llm.generate(rows, params)
        first = [output.outputs[0] for output in outputs]
        return {
            **batch,
            self._output: np.array([answer.text for answer in first], dtype=object),
            "finish_reason": np.array([answer.finish_reason for answer in first], dtype=object),
            "prompt_tokens": np.array([len(output.prompt_token_ids) for output in outputs], dtype=np.int64),
            "output_tokens": np.array([_tokens_of(output) for output in outputs], dtype=np.int64),
        }

    def _params_of(self, batch: Mapping[str, npt.NDArray[np.generic]], rows: int) -> list[SamplingParams]:
        if self._ids is None or self._params.seed is not None:
            return [self._params] * rows
        if self._ids not in batch:
            raise InvalidArgumentError(f"the dataset has no column {self._ids!r}")
        seeded = []
        for identity in batch[self._ids].tolist():
            params = self._params.clone()
            params.seed = seed_of(str(identity), self._seed)
            seeded.append(params)
        return seeded

    def close(self) -> None:
        """Frees the model."""
        self._llm.close()


def _conversation(row: Any) -> list[dict[str, Any]]:
    # Arrow gives members that only other messages have as None.
    return [{name: value for name, value in message.items() if value is not None} for message in row]


def _tokens_of(output: RequestOutput) -> int:
    return sum(len(answer.token_ids) for answer in output.outputs)


def seed_of(identity: str, seed: int) -> int:
    """A seed below 2**63 that depends on both, and on nothing else."""
    digest = hashlib.blake2b(f"{seed}:{identity}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def process(
    dataset: Any,
    model: str,
    *,
    batch_size: int = 256,
    actors: int | None = None,
    cpus_per_actor: float = 1,
    **arguments: Any,
) -> Any:
    """A dataset with the answers to its rows, lazily, as ``dataset.map_batches`` gives it.

    Args:
        dataset: A ``ray.data.Dataset``.
        model: As for MoesaicProcessor, and so are ``arguments``.
        batch_size: Rows that an actor is given at a time; it works on two batches.
        actors: How many load the model; None: one for each node that has CPUs. Ray spreads them over the nodes.
        cpus_per_actor: What Ray reserves for each. Ray's own reading and writing wants CPUs as well, so do not reserve
            all; the engine takes as many threads as ``threads`` says, by default one for each CPU of the machine.

    Returns:
        A ``ray.data.Dataset``.
    """
    if actors is None:
        actors = max(1, sum(node["Alive"] and node["Resources"].get("CPU", 0) >= 1 for node in load().nodes()))
    strategy = load("ray.data").ActorPoolStrategy(
        size=actors,
        max_tasks_in_flight_per_actor=_IN_FLIGHT,
        max_concurrent_calls_per_actor=_IN_FLIGHT,
        enable_true_multi_threading=True,
    )
    return dataset.map_batches(
        MoesaicProcessor,
        batch_size=batch_size,
        batch_format="numpy",
        compute=strategy,
        fn_constructor_args=(model,),
        fn_constructor_kwargs=arguments,
        num_cpus=cpus_per_actor,
    )

"""MoE: what scripts written for MoE-Infinity call."""

from __future__ import annotations

import os
from typing import Any, Mapping

from ._llm import LLM
from ._params import SamplingParams


class MoE:
    """A model made and asked as MoE-Infinity's ``MoE``.

    Args:
        checkpoint: A directory, a GGUF file, or the id of a model in the local Hugging Face cache.
        config: ``device_memory_ratio`` is the share of all experts that are kept in memory (0 to 1).
            ``offload_path`` is accepted and not needed: experts are read from the checkpoint.
        settings: Of LLM; they overrule ``config``.
    """

    def __init__(
        self, checkpoint: str | os.PathLike[str], config: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        ratio = (config or {}).get("device_memory_ratio")
        if ratio is not None and "expert_memory" not in settings:
            settings["expert_memory"] = f"{100 * float(ratio):g}%"
        self.llm = LLM(checkpoint, **settings)

    def generate(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        max_new_tokens: int = 20,
        do_sample: bool = False,
        pad_token_id: int = 0,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        **ignored: Any,
    ) -> Any:
        """Continues prompts as ``transformers`` does.

        Args:
            input_ids: Token ids [batch, tokens]: an array, a tensor, or lists.
            attention_mask: Likewise; zeros are padding. None: there is none.

        Returns:
            Prompts with their answers, padded on the right with ``pad_token_id``: int64 [batch,
            tokens], a tensor where ``input_ids`` is one, else a numpy array.
        """
        import numpy as np

        ids = np.asarray(input_ids)
        mask = np.ones_like(ids) if attention_mask is None else np.asarray(attention_mask)
        prompts = [row[kept != 0].tolist() for row, kept in zip(ids, mask)]
        params = SamplingParams(
            temperature=temperature if do_sample else 0, top_k=top_k, top_p=top_p, max_tokens=max_new_tokens
        )
        outputs = self.llm.generate(prompts, params)
        answers = [output.outputs[0].token_ids for output in outputs]
        result = np.full((len(ids), ids.shape[1] + max(map(len, answers))), pad_token_id, np.int64)
        result[:, : ids.shape[1]] = ids
        for row, answer in zip(result, answers):
            row[ids.shape[1] : ids.shape[1] + len(answer)] = answer
        return input_ids.new_tensor(result) if hasattr(input_ids, "new_tensor") else result

    def close(self) -> None:
        """Frees the model."""
        self.llm.close()

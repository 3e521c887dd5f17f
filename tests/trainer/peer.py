"""lm-eval's own adapter for Hugging Face models, driving one of our models through a thin wrapper."""

from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizer
from transformers.modeling_outputs import CausalLMOutput

from trainer.model import GPT
from trainer.tokenizer import END_OF_TEXT, load_tokenizer


class _Config(PretrainedConfig):  # type: ignore[misc]
    model_type = "xsa"


class _Model(PreTrainedModel):  # type: ignore[misc]
    config_class = _Config

    def __init__(self, model: GPT) -> None:
        super().__init__(_Config(max_position_embeddings=model.trial.seq_len))
        self.model = model

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.model.logits(input_ids))

    def tie_weights(self, *_: Any, **__: Any) -> None:
        """They are tied already."""


class _Tokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """Gives our ids: what is compared is the models."""

    def __init__(self, name: str) -> None:
        self.ours = load_tokenizer(name)
        super().__init__(eos_token=END_OF_TEXT, bos_token=END_OF_TEXT, pad_token=END_OF_TEXT)

    @property
    def vocab_size(self) -> int:
        return self.ours.n_vocab - 1

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(self.vocab_size)} | self.added_tokens_encoder

    def encode(self, text: str, **_: Any) -> list[int]:
        ids: list[int] = self.ours.encode(text).tolist()
        return ids

    def _convert_token_to_id(self, token: str) -> int:
        return int(token)

    def _convert_id_to_token(self, index: int) -> str:
        return str(index)


def peer(model: GPT, batch_size: int) -> HFLM:
    """The same model as lm-eval itself would drive it."""
    return HFLM(
        pretrained=_Model(model).eval(),
        tokenizer=_Tokenizer(model.trial.tokenizer),
        max_length=model.trial.seq_len,
        batch_size=batch_size,
        device="cpu",
    )

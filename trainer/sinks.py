"""Attention sinks: something to attend to besides the text (paper section 4.4; kinds are ours).

`token`  learned input embeddings in front of each sequence (Xiao et al. 2023): see `trainer.model`.
`kv`     learned keys and values of each layer, which every query sees; they have no position.
`logit`  learned logits of each head in the softmax's denominator (as in gpt-oss); no value.
`zero`   each adds exp(0) = 1 to the denominator ("softmax off by one"); nothing is learned.

The last three are columns in front of the keys. So that each query sees all of them under the
plain causal mask, which every fused kernel has, as many rows are put in front of the queries and
dropped from the result. Without sinks this is scaled_dot_product_attention(is_causal=True) itself.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.trial import Trial

_WIDER = 8
"""Added to the head width for logits that do not depend on the query: kernels want multiples of 8."""


class ColumnSinks(nn.Module):
    """The sinks of one layer that are columns of its attention: `kv`, `logit` or `zero`."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.kind = trial.sink_kind
        self.n = trial.n_sinks
        if self.kind == "kv":
            shape = (trial.n_kv_head, self.n, trial.d_head)
            self.key = nn.Parameter(torch.empty(shape))
            self.value = nn.Parameter(torch.empty(shape))
        elif self.kind == "logit":
            self.logit = nn.Parameter(torch.empty(trial.n_head, self.n))

    def extend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values with n rows in front, possibly with wider heads.

        Args:
            q: queries [B, H, T, D] as they enter the attention; k, v: [B, H_kv, T, D].
        """
        B, H_kv, _, D = k.shape
        if self.kind == "logit":
            # A learned logit differs between the query heads of a group, and so must the keys.
            group = q.shape[1] // H_kv
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            q = F.pad(F.pad(q, (0, 1), value=1.0), (0, _WIDER - 1))
            k, v = F.pad(k, (0, _WIDER)), F.pad(v, (0, _WIDER))
            logit = (self.logit * math.sqrt(D)).to(k.dtype)  # attention divides by the root
            key = F.pad(logit.unsqueeze(-1), (D, _WIDER - 1)).expand(B, -1, -1, -1)
            value = torch.zeros_like(key)
        elif self.kind == "kv":
            key, value = (x.to(k.dtype).expand(B, -1, -1, -1) for x in (self.key, self.value))
        else:
            key = value = k.new_zeros(B, H_kv, self.n, D)
        return F.pad(q, (0, 0, self.n, 0)), torch.cat((key, k), dim=2), torch.cat((value, v), dim=2)


def attend(
    q: Tensor, k: Tensor, v: Tensor, sinks: ColumnSinks | None, visible: Tensor | None = None
) -> Tensor:
    """Return softmax attention [B, H, T, D] of q [B, H, T, D] over k, v [B, H_kv, S, D] and sinks.

    Causal, with S = T, unless `visible` [B, 1, T, S] says which keys each query sees.
    """
    scale = None
    D = q.shape[-1]
    if sinks is not None:
        q, k, v = sinks.extend(q, k, v)
        scale = 1 / math.sqrt(D)  # of the head's own width: what `extend` adds to it is not part of it
        if visible is not None:
            visible = F.pad(visible, (sinks.n, 0, sinks.n, 0), value=True)
    y = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=visible,
        is_causal=visible is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return y if sinks is None else y[:, :, sinks.n :, :D]

"""Named model sizes. A name is a label: an arm's identity holds the numbers it stands for."""

from typing import NamedTuple


class Size(NamedTuple):
    """A transformer's shape. Attention width is `n_head * d_head`, independent of `d_model`."""

    n_layer: int
    d_model: int
    n_head: int
    d_head: int

    @property
    def non_embedding(self) -> int:
        """Weights in attention and MLP matrices, the count that the paper's Table 1 names."""
        return self.weights(n_kv_head=self.n_head)

    def weights(self, *, n_kv_head: int) -> int:
        """Return the same count where fewer keys and values are shared by the query heads."""
        attention = 2 * self.d_model * self.d_head * (self.n_head + n_kv_head)
        return self.n_layer * (attention + 8 * self.d_model**2)


# 10M and 30M count non-embedding weights, as the paper's three do; 124M and 350M are GPT-2's
# customary names, which count the embedding too.
SIZES: dict[str, Size] = {
    "toy": Size(2, 128, 2, 64),
    "10M": Size(6, 384, 6, 64),
    "30M": Size(10, 512, 8, 64),
    "124M": Size(12, 768, 12, 64),
    "350M": Size(24, 1024, 16, 64),
    "0.7B": Size(24, 1536, 6, 256),
    "1.3B": Size(24, 2048, 24, 128),
    "2.7B": Size(32, 2560, 24, 128),
}


def size_name(n_layer: int, d_model: int, n_head: int, d_head: int) -> str:
    """Return the name of the size with these numbers, or a spelled-out one such as `4L-128d-2x64`."""
    shape = (n_layer, d_model, n_head, d_head)
    for name, size in SIZES.items():
        if size[:4] == shape:
            return name
    return f"{n_layer}L-{d_model}d-{n_head}x{d_head}"

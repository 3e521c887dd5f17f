"""Final loss against the sequence length, SA and XSA.

A longer sequence gives a token more context, so losses at different lengths are not one quantity: compare
the differences.
"""

from results.against import Against

_FIGURE = Against("fig5", "seq_len", __doc__)
data, draw, caption = _FIGURE.data, _FIGURE.draw, _FIGURE.caption

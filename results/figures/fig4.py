"""Final loss against the learning rate, SA and XSA."""

from results.against import Against

_FIGURE = Against("fig4", "lr", __doc__)
data, draw, caption = _FIGURE.data, _FIGURE.draw, _FIGURE.caption

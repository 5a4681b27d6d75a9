"""The mathematics that algorithms share, as pure functions of tensors, named as the literature names it."""

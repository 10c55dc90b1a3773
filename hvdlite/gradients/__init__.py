"""Gradients between the backward pass and the optimizer's step, without any framework.

The bindings to PyTorch, TensorFlow and Keras turn gradients into arrays and feed them to a
`GradientReducer`, which knows how the ranks agree on them, and in which buckets they travel.
"""

"""Elastic training, as far as the ranks stay the same: states that can be put back.

What all bindings have in common; each of them has its own states in its `elastic`.
"""

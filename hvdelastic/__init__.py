"""Elastic training, as far as the ranks stay the same: states that can be put back.

Built on hvdlite's bindings, which offer it as `hvd.elastic`.
"""

"""Agreement: the decision itself, and what users see when ranks disagree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.agreement import resolve
from hvdlite.request import Descriptor, digest


def _call(name: str, shape=(3,), dtype="float32", op=1, kind="allreduce") -> Descriptor:
    return Descriptor(kind, name, op, dtype, (shape,), -1, 1.0, 1.0, "cpu")


def test_what_all_have_runs_in_the_order_of_the_first():
    lists = [[_call("a"), _call("b"), _call("c")], [_call("c"), _call("a")]]
    assert resolve(lists, [0, 1]) == ([_call("a"), _call("c")], {})


@pytest.mark.parametrize(
    ("field", "other", "shown"),
    [
        ("shape", {"shape": (4,)}, "the shape: (3,) on rank 0, (4,) on rank 2"),
        ("dtype", {"dtype": "int64"}, "the dtype: float32 on rank 0, int64 on rank 2"),
        ("operation", {"op": 0}, "allreduce Sum on rank 0, allreduce Average on rank 2"),
    ],
)
def test_a_difference_names_the_tensor_the_field_and_the_ranks(field, other, shown):
    run, errors = resolve([[_call("x")], [_call("x", **other)]], [0, 2])
    assert run == []
    assert "allreduce 'x'" in errors["x"] and field in errors["x"] and shown in errors["x"]


_names = st.lists(st.sampled_from("abcdef"), unique=True)


@given(st.lists(_names, min_size=1, max_size=4))
def test_nothing_runs_that_a_rank_has_not_asked_for(lists):
    calls = [[_call(name) for name in names] for names in lists]
    run, errors = resolve(calls, list(range(len(lists))))
    assert not errors
    names = [call.name for call in run]
    assert set(names) == set(lists[0]).intersection(*lists)
    assert names == [name for name in lists[0] if name in names]


def test_a_rank_that_has_joined_goes_along_with_what_it_can():
    join = _call("j", kind="join")
    gather = _call("g", kind="allgather")
    run, errors = resolve([[join], [_call("a"), gather], [_call("a"), gather]], [0, 1, 2])
    assert run == [_call("a")]
    assert "rank 0 called join()" in errors["g"]
    assert resolve([[join]] * 3, [0, 1, 2])[0] == [join]


@given(st.text(), st.lists(st.integers(0, 9), max_size=3))
def test_digests_are_numbers_of_64_bits_and_tell_calls_apart(name, shape):
    one, two = _call(name, tuple(shape)), _call(name + "!", tuple(shape))
    assert -(2**63) <= digest(one) < 2**63
    assert digest(one) == digest(_call(name, tuple(shape))) != digest(two)

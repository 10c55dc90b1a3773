"""Agreement: the decision itself, and what users see when ranks disagree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.engine.agreement import Decision, Offer, resolve
from hvdlite.request import Descriptor, digest


def _call(name: str, shape=(3,), dtype="float32", op=1, kind="allreduce") -> Descriptor:
    return Descriptor(kind, name, op, dtype, (shape,), -1, 1.0, 1.0, "cpu")


def _resolve(*calls: list[Descriptor], ranks=None, waits=(), waited=False) -> Decision:
    """The decision about each rank's calls; `waits` says, for each rank, where it waits."""
    offers = [Offer(listed, [call.key for call in listed if waited]) for listed in calls]
    for rank, text in enumerate(waits):
        offers[rank] = offers[rank]._replace(waits=text)
    return resolve(offers, ranks or list(range(len(calls))))


def test_what_all_have_runs_in_the_order_of_the_first():
    decision = _resolve([_call("a"), _call("b"), _call("c")], [_call("c"), _call("a")])
    assert decision == ([_call("a"), _call("c")], {}, "")


@pytest.mark.parametrize(
    ("field", "other", "shown"),
    [
        ("shape", {"shape": (4,)}, "the shape: (3,) on rank 0, (4,) on rank 2"),
        ("dtype", {"dtype": "int64"}, "the dtype: float32 on rank 0, int64 on rank 2"),
        ("operation", {"op": 0}, "allreduce Sum on rank 0, allreduce Average on rank 2"),
    ],
)
def test_a_difference_names_the_tensor_the_field_and_the_ranks(field, other, shown):
    run, errors, _ = _resolve([_call("x")], [_call("x", **other)], ranks=[0, 2])
    assert run == []
    assert (
        "allreduce 'x'" in errors["allreduce.x"]
        and field in errors["allreduce.x"]
        and shown in errors["allreduce.x"]
    )


_names = st.lists(st.sampled_from("abcdef"), unique=True)


@given(st.lists(_names, min_size=1, max_size=4))
def test_nothing_runs_that_a_rank_has_not_asked_for(lists):
    run, errors, _ = _resolve(*[[_call(name) for name in names] for names in lists])
    assert not errors
    names = [call.name for call in run]
    assert set(names) == set(lists[0]).intersection(*lists)
    assert names == [name for name in lists[0] if name in names]


def test_a_rank_that_has_joined_goes_along_with_what_it_can():
    join = _call("j", kind="join")
    gather = _call("g", kind="allgather")
    run, errors, _ = _resolve([join], [_call("a"), gather], [_call("a"), gather])
    assert run == [_call("a")]
    assert "rank 0 called join()" in errors["allgather.g"]
    assert _resolve([join], [join], [join]).run == [join]


def test_a_call_from_before_its_own_join_still_runs():
    join = _call("j", kind="join")
    assert _resolve([_call("a"), join], [join]) == ([_call("a"), join], {}, "")
    assert _resolve([join], [_call("a")], [_call("a"), join]).run == [_call("a")]


def test_one_name_for_several_kinds_is_an_error_where_all_ranks_wait_for_theirs():
    one, other = _call("x"), _call("x", kind="allgather", op=-1)
    assert _resolve([one], [other]) == ([], {}, "")  # both may still ask for the other one, too
    assert _resolve([one, other], [other, one], waited=True).run == [one, other]
    run, errors, _ = _resolve([one], [other], waited=True)
    assert not run and errors.keys() == {"allreduce.x", "allgather.x"}
    assert len(set(errors.values())) == 1
    assert "the operation: allreduce Sum on rank 0, allgather on rank 1." in errors["allgather.x"]
    numbered = [call._replace(numbered=True) for call in (one, other)]
    assert _resolve([numbered[0]], [numbered[1]], waited=True) == ([], {}, "")


def test_a_deadlock_is_one_only_where_every_rank_waits_and_nothing_runs():
    calls = [[_call("a")], [_call("b")]]
    assert not _resolve(*calls, waits=[["allreduce 'a' at x.py:1"], []]).deadlock
    both = [["allreduce 'a' at x.py:1"], ["allreduce 'b' at x.py:2"]]
    told = _resolve(*calls, waits=both).deadlock
    assert "rank 0 waits in allreduce 'a' at x.py:1; rank 1 waits in allreduce 'b' at" in told
    assert not _resolve([_call("a"), _call("b")], [_call("b")], waits=both).deadlock


@given(st.text(), st.lists(st.integers(0, 9), max_size=3))
def test_digests_are_numbers_of_64_bits_and_tell_calls_apart(name, shape):
    one, two = _call(name, tuple(shape)), _call(name + "!", tuple(shape))
    assert -(2**63) <= digest(one) < 2**63
    assert digest(one) == digest(_call(name, tuple(shape))) != digest(two)


def test_calls_of_two_kinds_under_one_name_that_all_make_cross_nothing():
    """Each rank waits for the one that it has made last, and both of them run."""
    reduce, gather = _call("x"), _call("x", kind="allgather")
    offers = [Offer([reduce, gather], [gather.key]), Offer([gather, reduce], [reduce.key])]
    assert resolve(offers, [0, 1]) == ([reduce, gather], {}, "")

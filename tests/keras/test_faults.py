"""Some random faults on real ranks, the same in each run; tests/faults.py runs any number."""

import pytest
from faults import DEADLY, LIMIT, SURVIVED, run

pytestmark = pytest.mark.timeout(10 * LIMIT)


@pytest.mark.parametrize("np, count", [(2, 9), (3, 5)])
def test_ranks_survive_and_name_the_culprit(np, count):
    results = list(run(2033, count, np, SURVIVED))
    assert len(results) == count
    assert [(str(fault), wrong) for fault, wrong in results if wrong] == []


def test_jobs_end_with_the_culprits_code_and_name():
    results = list(run(2033, 3, 3, DEADLY))
    assert len(results) == 3
    assert [(str(fault), wrong) for fault, wrong in results if wrong] == []

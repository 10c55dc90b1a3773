"""An elastic training with PyTorch, through some events; elastic_training.py has any number."""

import elastic_training


def test_nothing_is_lost_or_done_twice():
    print(elastic_training.events(count=6, seed=3, epochs=4, pause=0.02))

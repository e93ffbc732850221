"""The memory keeps the last steps and knows how many there were."""

from __future__ import annotations

from envs.memory import Memory, Record


def test_only_the_last_steps_are_kept_under_their_numbers() -> None:
    memory = Memory(2)
    for number in (1, 2, 3):
        memory.add(f"page {number}", f"act {number}")
    assert memory.num_steps == 3
    assert memory.last(2) == (Record(2, "page 2", "act 2"), Record(3, "page 3", "act 3"))
    assert memory.last(1) == (Record(3, "page 3", "act 3"),)
    assert memory.last(9) == memory.last(2)
    assert memory.last(0) == ()


def test_a_memory_of_nothing_still_counts() -> None:
    memory = Memory(0)
    memory.add("page", "act")
    assert (memory.num_steps, memory.last(5)) == (1, ())

from __future__ import annotations

import random
from uuid import UUID

from faultline.core.ids import Ids


def test_ids_of_one_process_are_in_order_even_within_one_tick_of_the_clock() -> None:
    ids = Ids(seconds=lambda: 1_800_000_000.123456)

    made = [ids.new() for _ in range(1000)]

    assert made == sorted(made)
    assert len(set(made)) == 1000


def test_an_id_tells_its_time() -> None:
    made = Ids(seconds=lambda: 1_800_000_000.5).new()

    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert made.int >> 80 == 1_800_000_000_500


def test_chance_comes_in_through_the_constructor() -> None:
    one, two = (Ids(seconds=lambda: 1.0, chance=random.Random(7)).new() for _ in range(2))

    assert one == two
    assert isinstance(one, UUID)


def test_ids_grow_where_the_clock_goes_back() -> None:
    clock = iter([1_800_000_000.0, 1_799_999_990.0, 1_799_999_991.0])
    ids = Ids(seconds=lambda: next(clock))

    made = [number for _ in range(3) for number in ids.new_numbers(300)]

    assert made == sorted(set(made))

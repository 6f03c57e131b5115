"""What adapters of flows share: five programs, the same in every system, told apart by what their stamps carry.

    steps   STEPS steps, one after the other; each one writes a stamp
    short   a step, a durable sleep of 10 ms, two more steps; the first and the last one write a stamp
    fan     CHILDREN children that do nothing, and their results; the parent's last line writes a stamp
    answer  a step that writes a stamp, a signal, and a stamp with the time at which the signal was sent
    killed  a recorded step, and a second one that never ends, unless somebody has begun it before

An adapter gives the five functions of `common.main`, whose kinds are these programs, and `send(number)`, which signals the
flow with that number. Every flow gets the time at which it was sent, and its number.
"""

import itertools
import os
import struct

import common

STEPS = int(os.environ.get("BENCH_STEPS", "100"))
CHILDREN = int(os.environ.get("BENCH_CHILDREN", "1000"))
NAP_SECONDS = 0.01
FOREVER_SECONDS = 3600.0
PROGRAMS = ("steps", "short", "fan", "answer", "killed")

_STAMP = struct.Struct("<ddq")
_numbers = itertools.count()


def numbered(jobs):
    """The arguments of flows, with their numbers. The first flow of a driver has the number 0."""
    return [{"sent": job["sent"], "number": next(_numbers)} for job in jobs]


def recorded(number):
    """The first step of `killed`."""
    common.stamp(number * 10 + 1)
    return number


def was_begun(number):
    """The second step of `killed`: say whether it has been begun before, in which case it is to end at once."""
    with open(os.environ["BENCH_STAMPS"], "rb") as stamps:
        whole = stamps.read()
    marks = {mark for mark, _, _ in _STAMP.iter_unpack(whole[: len(whole) // _STAMP.size * _STAMP.size])}
    again = number * 10 + 2 in marks
    common.stamp(number * 10 + (3 if again else 2))
    return again

"""What the schedules look like on equal stages; small letters are stages beyond the first p."""

import pytest

from tests.catalog.helpers import picture, uniform
from zbsolve.catalog import baseline
from zbsolve.placement import Placement


@pytest.mark.parametrize(
    ("name", "placement", "microbatches", "lines"),
    [
        (
            "looped-bfs",
            Placement.looped(2, 2),
            3,
            [
                "F0 F1 F2 f0 f1 f2          bw0   bw1   bw2   BW0   BW1   BW2",
                "   F0 F1 F2 f0 f1 f2 bw0   bw1   bw2   BW0   BW1   BW2",
            ],
        ),
        (
            "torch-looped-bfs",
            Placement.looped(2, 2),
            3,
            [
                "F0 F1 F2 f0 f1 f2          bw2   bw1   bw0   BW2   BW1   BW0",
                "   F0 F1 F2 f0 f1 f2 bw2   bw1   bw0   BW2   BW1   BW0",
            ],
        ),
        (
            "interleaved-1f1b",
            Placement.looped(2, 2),
            4,
            [
                "F0 F1 f0 f1 F2    bw0   F3 bw1   f2 BW0   f3 BW1      bw2      bw3   BW2   BW3",
                "   F0 F1 f0 bw0   f1 bw1   F2 BW0   F3 BW1   f2 bw2   f3 bw3   BW2   BW3",
            ],
        ),
        (
            "interleaved-zb",
            Placement.looped(2, 2),
            4,
            [
                "F0 F1 f0 f1    b0 w0 F2 b1 w1 F3 B0 W0 f2 B1 W1 f3 b2 w2 b3 w3 B2 W2 B3 W3",
                "   F0 F1 f0 b0 f1 b1 w0 F2 B0 w1 F3 B1 W0 f2 b2 W1 f3 b3 w2 B2 w3 B3 W2 W3",
            ],
        ),
        (
            "1f1b-v",
            Placement.v(2),
            4,
            [
                "F0 F1 F2 f0 bw0   f1 bw1   F3 BW0   f2 bw2      BW1   f3 bw3      BW2         BW3",
                "   F0 f0 F1 f1    bw0   BW0   F2 f2 bw1   BW1   F3 f3 bw2   BW2   bw3   BW3",
            ],
        ),
        (
            "torch-zb-v",
            Placement.v(3),
            6,
            [
                "F0 F1 F2 F3 F4 f0 b0 w0 f1 b1 w1 f2 b2 w2 F5 B0 W0 f3 b3 w3 B1 W1 f4 b4 w4 B2 W2 f5 b5 w5 B3 W3 B4 "
                "W4 B5 W5",
                "   F0 F1 F2 f0 F3 f1 b0 w0 f2 b1 w1 F4 B0 W0 f3 b2 w2 F5 B1 W1 f4 b3 w3 B2 W2 f5 b4 w4 B3 b5 B4 W3 B5 "
                "W4 w5 W5",
                "      F0 f0 F1 f1 F2 f2 b0 w0 F3 B0 W0 f3 b1 w1 F4 B1 W1 f4 b2 w2 F5 B2 W2 f5 b3 w3 B3 b4 B4 b5 B5 W3 "
                "w4 w5 W4 W5",
            ],
        ),
        (
            "dualpipe-v",
            Placement.v(2),
            4,
            [
                "F0 F1 F2 f0 b0 w0 f1 F3 bw1   f2 BW0   bw2   f3    BW1   bw3   B2 W2 B3 W3",
                "   F0 f0 F1 f1 F2 bw0   f2 BW0   F3 bw1   f3 BW1   bw2   BW2   b3 B3 w3 W3",
            ],
        ),
        (
            "hanayo",
            Placement.v(2),
            2,
            [
                "F0 F1    f0 bw0   f1 bw1      BW0         BW1",
                "   F0 f0 F1 f1    bw0   BW0   bw1   BW1",
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pictures(name, placement, microbatches, lines):
    assert picture(name, uniform(placement, microbatches)) == lines


def test_the_two_directions_of_chimera_fill_each_other_s_bubbles():
    problem = uniform(Placement.bidirectional(4), 4, forward=2)
    assert picture("chimera", problem, width=2) == [
        "F0  F2      F1  BW1 F3  BW3 BW0     BW2",
        "    F0  F1  F2  F3  BW1 BW0 BW3 BW2",
        "    F1  F0  F3  F2  BW0 BW1 BW2 BW3",
        "F1  F3      F0  BW0 F2  BW2 BW1     BW3",
    ]


def test_rows_of_dualpipe():
    rows = baseline("dualpipe", uniform(Placement.bidirectional(4), 8)).rows
    assert [" ".join(f"{op.kind.letter}{op.microbatch}" for op in row) for row in rows] == [
        "F0 F2 F4 F1 B1 W1 F3 F6 BW3 F5 BW0 BW5 F7 BW2 BW7 B4 W4 B6 W6",
        "F0 F1 F2 F3 F4 BW1 F5 BW0 F6 BW3 F7 BW2 BW5 BW4 B7 B6 W7 W6",
        "F1 F0 F3 F2 F5 BW0 F4 BW1 F7 BW2 F6 BW3 BW4 BW5 B6 B7 W6 W7",
        "F1 F3 F5 F0 B0 W0 F2 F7 BW2 F4 BW1 BW4 F6 BW3 BW6 B5 W5 B7 W7",
    ]

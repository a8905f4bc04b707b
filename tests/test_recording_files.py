"""Recordings are read from NumPy archives and from tables of text."""

import numpy as np
import pytest

from jaxdyn import DataError
from jaxdyn.sysid import load_csv, load_npz

TABLE = """# recorded on a Tuesday

time,pos_1,pos_2,pos_10,i_1,i_2,note_1
0,0,90,1,0.5,0.25,1
# a pause
10,45,90,2,0.5,0.25,1
20,90,90,3,0.5,-0.25e1,1
"""


def test_load_npz(tmp_path):
    path = tmp_path / "run.npz"
    t = np.arange(5.0)
    np.savez(path, t=t, q=np.zeros((5, 2)), tau_measured=np.ones((5, 2)), v=np.zeros((5, 2)))
    r = load_npz(path, tau="tau_measured")
    assert r.v is not None
    assert r.a is None
    assert r.require("tau")[0].sum() == 10
    with pytest.raises(DataError, match=r"no array 'tau' \(torques\); it has q, t, tau_measured, v"):
        load_npz(path)
    with pytest.raises(DataError, match="no array 'acc'"):
        load_npz(path, tau="tau_measured", a="acc")
    with pytest.raises(DataError, match=r"no such file.*run\.npz"):
        load_npz(tmp_path / "walk.npz")
    with pytest.raises(DataError, match="no such file"):
        load_npz(tmp_path / "nowhere" / "walk.npz")
    for content in (b"", b"hello", b"PK\x03\x04broken"):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"bad\.npz"):
            load_npz(tmp_path / "bad.npz")
    np.savez(path, t=t[::-1], q=np.zeros((5, 2)), tau=np.ones((5, 2)))
    with pytest.raises(DataError, match=r"run\.npz: time does not increase"):
        load_npz(path)


def test_load_csv(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text(TABLE)
    scale = {"t": 1e-3, "q": [np.pi / 180, np.pi / 180, 1.0]}
    r = load_csv(path, {"t": "time", "q": "pos_*", "current": ["i_2", "i_1"]}, scale=scale)
    assert r.name == "run.csv"
    assert (r.v, r.tau) == (None, None)
    np.testing.assert_allclose(r.t, np.array([0, 0.01, 0.02]), rtol=0, atol=1e-15)
    np.testing.assert_allclose(
        r.q, np.array([[0, np.pi / 2, 1], [np.pi / 4, np.pi / 2, 2], [np.pi / 2, np.pi / 2, 3]]), rtol=0, atol=1e-15
    )
    np.testing.assert_array_equal(r.current, np.array([[0.25, 0.5], [0.25, 0.5], [-2.5, 0.5]]))
    path.write_text("# t a b\n0 1 2\n1\t3   4\n")
    np.testing.assert_array_equal(
        load_csv(path, {"t": "t", "q": ["b", "a"]}, delimiter=" ").q, np.array([[2, 1], [4, 3]])
    )
    path.write_text("0;1;2\n1;3;4\n")
    np.testing.assert_array_equal(load_csv(path, {"t": 0, "q": [2], "tau": 1}, delimiter=";").tau, np.array([[1], [3]]))


@pytest.mark.parametrize(
    ("columns", "change", "message"),
    [
        ({"t": "time", "q": "pos_1", "tau": "torque"}, {}, r"no column 'torque' for tau \(torques\); it has 'time'"),
        ({"t": "time", "q": "pos1"}, {}, r"no column 'pos1' for q .*did you mean 'pos_1'"),
        ({"t": "time", "q": "angle*"}, {}, r"no column 'angle\*'"),
        ({"t": "time", "q": 7}, {}, "no column 7"),
        ({"t": "time", "q": []}, {}, "q .* is 0 columns"),
        ({"t": ["time", "pos_1"], "q": 1}, {}, "t .* is 2 columns"),
        ({"t": "time"}, {}, "with t and q at least"),
        ({"t": "time", "q": 1, "torque": 2}, {}, "got 'torque'"),
        ({"t": "time", "q": "pos_*"}, {"45": "abc"}, r"line 6: column 'pos_1' \(positions\) is 'abc', not a number"),
        ({"t": "time", "q": "pos_*"}, {",90,2": ",2"}, "line 6: 6 columns, but 7 before"),
        ({"t": "time", "q": "pos_*"}, {"10,45": "0,45"}, r"run\.csv: time does not increase"),
        ({"t": "time", "q": "pos_*"}, {",": ";"}, r"is the delimiter really ','\?"),
        ({"t": "time", "q": "pos_1"}, {"pos_2": "pos_1"}, "stands 2 times: give numbers"),
        ({"t": 0, "q": 1}, {TABLE: ""}, "empty"),
        ({"t": 0, "q": 1}, {TABLE: "a,b"}, "no line of numbers; it begins with 'a,b'"),
    ],
)
def test_mistakes_in_tables_are_named(tmp_path, columns, change, message):
    path, text = tmp_path / "run.csv", TABLE
    for old, new in change.items():
        text = text.replace(old, new)
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_csv(path, columns)
    with pytest.raises(DataError, match=r"no such file; .* has run\.csv"):
        load_csv(tmp_path / "walk.csv", columns)


def test_scales_of_tables(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text(TABLE)
    with pytest.raises(DataError, match="the scale of q does not fit its 3 columns"):
        load_csv(path, {"t": 0, "q": "pos_*"}, scale={"q": [1.0, 2.0]})

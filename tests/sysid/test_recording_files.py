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
    columns = {"t": 0, "q": [2], "tau": 1}
    np.testing.assert_array_equal(load_csv(path, columns, delimiter=";", header=False).tau, np.array([[1], [3]]))


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


@pytest.mark.parametrize("header", ["0,1,2", "1,2,3", ",0,1,2", "time,0,1", "t,q,tau", '"t","q","tau"'])
def test_a_line_of_names_is_never_a_sample(tmp_path, header):
    """Lines as pandas writes them, `to_csv` with and without its index. Columns are chosen by number."""
    count, path = header.count(",") + 1, tmp_path / "run.csv"
    rows = [[*([k] if count == 4 else []), 0.5 + 0.1 * k, 1.5, 2.5] for k in range(3)]
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]))
    columns = {"t": count - 3, "q": count - 2, "tau": count - 1}
    if "t" not in header:
        with pytest.raises(DataError, match=r"run\.csv, line 1: .* may be the names .* header=True .* header=False"):
            load_csv(path, columns)
    r = load_csv(path, columns, header=None if "t" in header else True)
    np.testing.assert_allclose(r.t, [0.5, 0.6, 0.7])
    np.testing.assert_array_equal(np.stack([r.q, r.tau]), np.stack([np.full((3, 1), 1.5), np.full((3, 1), 2.5)]))


def test_a_sample_that_lacks_a_value_stays_a_sample(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("0,1.5,\n1,2.5,4\n")
    np.testing.assert_array_equal(load_csv(path, {"t": 0, "q": 1}).q, [[1.5], [2.5]])
    with pytest.raises(DataError, match=r"line 1: column 2 \(torques\) is '', not a number: it is empty"):
        load_csv(path, {"t": 0, "q": 1, "tau": 2})


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("t;q\r\n0,5;1,25\r\n\r\n1,5;-2,5e-1\r\n", {"delimiter": ";", "decimal": ","}, [0.5, 1.25, 1.5, -0.25]),
        ("\ufefft\tq\n0.5\t1.25\n1.5\t2\n", {"delimiter": "\t"}, [0.5, 1.25, 1.5, 2]),
        ("t,q,\n0.5,1.25,\n1.5,2,\n", {}, [0.5, 1.25, 1.5, 2]),
        ("t, q\n0.5, 1.25\n1.5, 2\n", {}, [0.5, 1.25, 1.5, 2]),
        ("t;q\n0,5;1,25\n1,5;2\n", {"delimiter": ";"}, r"line 2: .*'0,5', not a number; .*give decimal=','"),
        ("t,q\n0,1_0\n1,2\n", {}, r"run\.csv, line 2: column 'q' \(positions\) is '1_0', not a number"),
        ("t,q\n2024-01-01 00:00:00,1\n", {}, "is a date; give times in s"),
        ("t,q\n0,1\n0,2\n", {}, r"from row 0 \(t = 0.0\) to row 1 \(t = 0.0\)"),
        ("t,q\n0,1\n1,inf\n", {}, r"q is not finite in 1 places, the first at row 1, column 0 \(t = 1 s\)"),
        ("t,q\n0,1\n1\n", {}, "line 3: 1 columns, but 2 before"),
        ("t,q1,q01\n0,1,2\n1,2,3\n", {"q": "q*"}, "'q1', 'q01'; list names"),
        ("t,q\n0,1\n1,2\n", {"q": ["q", "q"]}, "q .* has a column twice: 'q'"),
        ("t,q\n0,1\n1,2\n", {"delimiter": ""}, "load_csv: delimiter is ''; give the text between columns"),
        ("t,q\n0,1\n1,2\n", {"decimal": ","}, "load_csv: decimal is ','; .* not the delimiter ','"),
    ],
)
def test_tables_of_other_programs(tmp_path, text, options, expected):
    """Decimal commas, marks of byte order, line ends of Windows, delimiters at the end of lines, and mistakes."""
    path, columns = tmp_path / "run.csv", {"t": 0, "q": options.pop("q", 1)}
    path.write_bytes(text.encode())
    if isinstance(expected, list):
        r = load_csv(path, columns, **options)
        np.testing.assert_array_equal(np.column_stack([r.t, r.q]).ravel(), expected)
    else:
        with pytest.raises(DataError, match=expected) as caught:
            load_csv(path, columns, **options)
        assert "np." not in str(caught.value)


def test_quoted_decimal_commas_are_one_cell(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text('"0.5","1.25, about"\n1,2\n')
    with pytest.raises(DataError, match=r"is '1\.25, about', not a number"):
        load_csv(path, {"t": 0, "q": 1})


def test_what_is_no_archive_is_named(tmp_path):
    (tmp_path / "run.csv").write_text(TABLE)
    np.save(tmp_path / "run.npy", np.zeros(3))
    (tmp_path / "empty.npz").write_bytes(b"")
    for name, message in {
        "run.csv": r"it begins like a text\. Tables are read by load_csv",
        "run.npy": "it has one array",
        "empty.npz": "it is empty",
        ".": r"is a folder; give the file of a recording\. .* has empty\.npz, run\.csv, run\.npy",
    }.items():
        with pytest.raises(DataError, match=message):
            load_npz(tmp_path / name)


def test_columns_are_guessed_by_their_names(tmp_path):
    """Without columns, and for None, usual names are taken."""
    path = tmp_path / "run.csv"
    path.write_text("time,torque_2,position_1,torque_1,position_2\n0,4,1,3,2\n1,4,2,3,2\n")
    r = load_csv(path)
    np.testing.assert_array_equal(r.q, [[1, 2], [2, 2]])
    np.testing.assert_array_equal(r.tau, [[3, 4], [3, 4]])
    assert load_csv(path, {"t": "time", "q": None}).tau is None
    path.write_text("time,q1,M1\n0,4,1\n1,4,2\n")
    with pytest.raises(DataError, match=r"no column 'tau\*' for tau \(torques\); it has 'time', 'q1', 'M1'"):
        load_csv(path)


@pytest.mark.parametrize("broken", ["2,5", "2,abc,6"])
def test_broken_lines_are_named_and_can_be_left_out(tmp_path, broken):
    path = tmp_path / "run.csv"
    path.write_text(f"t,q1,tau1\n0,4,1\n1,4,2\n{broken}\n3,7,8\n{broken}\n5,6,7\n")
    with pytest.raises(DataError, match=r"line 4: .*skip_lines=\[4, 6\]"):
        load_csv(path)
    np.testing.assert_array_equal(load_csv(path, skip_lines=[4, 6]).t, [0, 1, 3, 5])

"""Recordings are read from NumPy archives, tables of text, bags of ROS, and data sets of LeRobot."""

import json

import numpy as np
import pytest

from jaxdyn import DataError
from jaxdyn.sysid import load_bag, load_csv, load_lerobot, load_npz

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


JOINT_STATE = "sensor_msgs/msg/JointState"


def write_bag(folder, samples, *, storage="MCAP", topic="/joint_states"):
    """Write joint states, given as time in ns, names, positions, velocities and efforts, and a topic of texts."""
    rosbag2 = pytest.importorskip("rosbags.rosbag2", reason="needs the package rosbags")
    typesys = pytest.importorskip("rosbags.typesys", reason="needs the package rosbags")
    types = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    state, header, time, text = (
        types.types[x]
        for x in (JOINT_STATE, "std_msgs/msg/Header", "builtin_interfaces/msg/Time", "std_msgs/msg/String")
    )
    with rosbag2.Writer(folder, version=9, storage_plugin=rosbag2.StoragePlugin[storage]) as writer:
        joints = writer.add_connection(topic, JOINT_STATE, typestore=types)
        words = writer.add_connection("/words", "std_msgs/msg/String", typestore=types)
        for k, (stamp, names, *arrays) in enumerate(samples):
            message = state(
                header(time(stamp // 10**9, stamp % 10**9), ""), names, *(np.array(x, np.float64) for x in arrays)
            )
            data = types.serialize_cdr(message, JOINT_STATE)
            writer.write(joints, 10**9 * k, data)
            writer.write(words, 10**9 * k, types.serialize_cdr(text("no state"), "std_msgs/msg/String"))
    return folder


START = 1_760_000_000_123_456_789


@pytest.mark.parametrize("storage", ["MCAP", "SQLITE3"])
def test_bags_of_ros(tmp_path, storage):
    """Joints come in the order that is asked for, whatever the messages have, and times keep their nanoseconds."""
    arm, other = ["elbow", "shoulder"], ["shoulder", "elbow"]
    samples = [
        (START, arm, [1, 2], [3, 4], [5, 6]),
        (START + 2_000_001, ["finger"], [9], [], []),
        (START + 2_000_002, other, [20, 10], [40, 30], [60, 50]),
    ]
    bag = write_bag(tmp_path / "bag", samples, storage=storage)
    r = load_bag(bag, joints=["shoulder", "elbow"])
    np.testing.assert_array_equal(r.t, [0, 0.002000002])
    np.testing.assert_array_equal(r.q, [[2, 1], [20, 10]])
    np.testing.assert_array_equal(np.stack(r.require("v", "tau")), [[[4, 3], [40, 30]], [[6, 5], [60, 50]]])
    file = next(x for x in bag.iterdir() if x.suffix in (".mcap", ".db3"))
    np.testing.assert_array_equal(load_bag(file, "/joint_states", joints=["elbow", "shoulder"], clock="log").t, [0, 2])
    for options, message in (
        ({}, "message 1 lacks elbow, shoulder; name the joints"),
        ({"topic": "/words"}, r"topic '/words' has another type; it has /joint_states of type sensor_msgs"),
        ({"topic": "/states"}, r"topic '/states' is missing; it has /joint_states .*, and /words \(std_msgs"),
        ({"joints": ["shoulder", "wrist"]}, "message 0 lacks wrist"),
        ({"joints": ["wrist"]}, "no message has the joints wrist"),
        ({"clock": "wall"}, "clock is 'wall'"),
    ):
        with pytest.raises(DataError, match=message):
            load_bag(bag, **options)


def test_bags_with_faults_are_refused_by_name(tmp_path):
    name = ["a"]
    late = write_bag(tmp_path / "late", [(START + x, name, [x], [], []) for x in (0, 20, 10, 30)])
    with pytest.raises(DataError, match=r"1 samples are earlier than the one before, the first at row 2 by 1e-08 s"):
        load_bag(late)
    np.testing.assert_array_equal(load_bag(late, reorder=True).q[:, 0], [0, 10, 20, 30])
    some = write_bag(tmp_path / "some", [(START, name, [0], [], [1]), (START + 9, name, [0], [], [])])
    with pytest.raises(DataError, match="message 1 has 1 names and 0 in effort, as 1 of 2 messages"):
        load_bag(some)
    twice = write_bag(tmp_path / "twice", [(START, ["a", "a"], [0, 1], [], [])])
    with pytest.raises(DataError, match="message 0 names a joint twice: a, a"):
        load_bag(twice)
    with pytest.raises(DataError, match="no messages"):
        load_bag(write_bag(tmp_path / "empty", []))
    (tmp_path / "text.mcap").write_text("hello")
    with pytest.raises(DataError, match=r"text\.mcap: not a bag that can be read"):
        load_bag(tmp_path / "text.mcap")
    with pytest.raises(DataError, match="no such file or folder"):
        load_bag(tmp_path / "nowhere")


def write_lerobot(folder, frames=(0, 1, 2, 0, 1), names=("a.pos", "b.pos")):
    """Write two episodes at 30 Hz with float32 times."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the package pyarrow")
    (folder / "meta").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    features = {x: {"dtype": "float32", "names": {"motors": list(names)}} for x in ("observation.state", "action")}
    (folder / "meta" / "info.json").write_text(json.dumps({"fps": 30, "features": features}))
    state = np.arange(10.0).reshape(5, 2)
    columns = {
        "observation.state": pyarrow.array(state.tolist(), pyarrow.list_(pyarrow.float32())),
        "action": pyarrow.array((-state).tolist(), pyarrow.list_(pyarrow.float32())),
        "timestamp": pyarrow.array(np.array(frames, np.float32) / np.float32(30)),
        "frame_index": pyarrow.array(frames),
        "episode_index": pyarrow.array([0, 0, 0, 7, 7]),
    }
    parquet.write_table(pyarrow.table(columns), folder / "data" / "chunk-000" / "file-000.parquet")
    return folder


def test_data_sets_of_lerobot(tmp_path):
    folder = write_lerobot(tmp_path / "set")
    first, second = load_lerobot(folder, joints=["b", "a"], scale={"q": [10, 1]})
    np.testing.assert_array_equal(first.q, [[10, 0], [30, 2], [50, 4]])
    np.testing.assert_array_equal(second.require("control")[0], [[-7, -6], [-9, -8]])
    np.testing.assert_allclose(first.t, np.arange(3) / 30, rtol=1e-15)
    assert first.rate == pytest.approx(30)
    assert [len(x) for x in load_lerobot(folder, {"q": "action"}, episodes=[7])] == [2]
    file = next((folder / "data").glob("*/*.parquet"))
    assert len(load_lerobot(file)) == 2
    for path, options, message in (
        (folder, {"columns": {"q": "state"}}, r"no column state; it has observation\.state, action"),
        (folder, {"columns": {"v": "action"}}, "columns has v; q is needed"),
        (folder, {"episodes": [1]}, "no episode 1; there are 0 to 7"),
        (folder, {"joints": ["c"]}, r"observation\.state has no column c, or several; it has a\.pos, b\.pos"),
        (folder, {"scale": {"q": [1, 2, 3]}}, "the scale of q does not fit its 2 columns"),
        (file, {"joints": ["a"]}, "meta/info.json does not name the columns"),
        (tmp_path, {}, "no data/"),
        (tmp_path / "nothing.parquet", {}, "no such file"),
    ):
        with pytest.raises(DataError, match=message):
            load_lerobot(path, **options)
    gap = write_lerobot(tmp_path / "gap", frames=(0, 2, 1, 0, 1))
    with pytest.raises(DataError, match="episode 0: frame 2 follows frame 0"):
        load_lerobot(gap)

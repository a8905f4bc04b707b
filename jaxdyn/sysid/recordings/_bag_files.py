"""Recordings from bags of ROS: topics of joint states, in the formats of ROS 2 (MCAP and SQLite) and ROS 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import DataError, naming_arguments
from jaxdyn._extras import import_extra
from jaxdyn.sysid.recordings._recording import Recording

_TYPE = "sensor_msgs/msg/JointState"
_ARRAYS = {"q": "position", "v": "velocity", "tau": "effort"}


@naming_arguments
def load_bag(
    path: str | Path,
    topic: str | None = None,
    *,
    joints: Sequence[str] | None = None,
    clock: str = "header",
    reorder: bool = False,
) -> Recording:
    """Return a `Recording` from the joint states in a bag of ROS 2, or in a `.bag` of ROS 1: positions, and velocities
    and efforts (as torques) where the messages have them. No ROS is needed, but the package `rosbags`:
    `pip install 'jaxdyn[bags]'`.

    **Arguments**

    - `path`: the folder of a bag, or its `.mcap`, `.db3` or `.bag` file.
    - `topic`: of type `sensor_msgs/msg/JointState`; by default the only one of this type.
    - `joints`: names of the messages' joints in the order that the columns get, such as `model.joint_names`. Messages
      without any of these are of other parts of the robot, and are skipped. By default the order of the first message,
      whose joints all others must have, in whatever order.
    - `clock`: `"header"` for the times at which the driver says that it has measured, or `"log"` for those at which
      messages came to the recorder. Times count from the first sample, from integers of nanoseconds.
    - `reorder`: sort samples by time. Without it, samples that are out of order are refused: a clock may have been
      reset.

    **Raises** `DataError` for a file that is no bag, a topic that is missing or of another type, joints that a message
    lacks or names twice, arrays of another length than the names, some messages with efforts and others without, and
    times that do not increase; `ImportError` without the package.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if clock not in ("header", "log"):
        raise DataError(f"{path}: clock is {clock!r}; give 'header' or 'log'")
    highlevel: Any = import_extra("rosbags.highlevel", "read bags of ROS", "bags")
    typesys: Any = import_extra("rosbags.typesys", "read bags of ROS", "bags")
    # Bags before ROS 2 Iron do not contain the definitions of their messages.
    types = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    try:
        with highlevel.AnyReader([path], default_typestore=types) as reader:
            chosen = _connections(path, reader.connections, topic)
            found = [
                (stamp if clock == "log" else _stamp(message), message)
                for connection, stamp, data in reader.messages(connections=chosen)
                for message in [reader.deserialize(data, connection.msgtype)]
            ]
    except highlevel.AnyReaderError as error:
        raise DataError(f"{path}: not a bag that can be read: {error}") from None
    what = f"{path}, topic {chosen[0].topic}"
    if not found:
        raise DataError(f"{what}: it has no messages")
    names = tuple(map(str, found[0][1].name)) if joints is None else tuple(map(str, joints))
    if joints is not None:
        found = [x for x in found if set(names) & set(x[1].name)]
        if not found:
            raise DataError(f"{what}: no message has the joints {', '.join(names)}")
    # Integers: nanoseconds since 1970 have more digits than a float64.
    stamps = np.array([stamp for stamp, _ in found], np.int64)
    arrays = _arrays(what, [message for _, message in found], names, exactly=joints is None)
    order = np.argsort(stamps, kind="stable")
    out_of_order = int(np.sum(np.diff(stamps) < 0))
    if out_of_order and not reorder:
        k = int(np.flatnonzero(np.diff(stamps) < 0)[0])
        raise DataError(
            f"{what}: {out_of_order} samples are earlier than the one before, the first at row {k + 1} by "
            f"{(stamps[k] - stamps[k + 1]) / 1e9:g} s; give reorder=True if messages were late, or split the recording "
            "where the clock was reset"
        )
    t = (stamps[order] - stamps[order[0]]) / 1e9
    ordered: dict[str, Any] = {name: x[order] for name, x in arrays.items()}
    return Recording(t, **ordered, name=path.name)


def _connections(path: Path, connections: Sequence[Any], topic: str | None) -> list[Any]:
    """Return the connections of a topic of joint states. **Raises** `DataError`."""
    states = sorted({x.topic for x in connections if x.msgtype == _TYPE})
    others = sorted({f"{x.topic} ({x.msgtype})" for x in connections if x.msgtype != _TYPE})
    have = f"it has {', '.join(states) or 'none'} of type {_TYPE}" + (f", and {', '.join(others)}" if others else "")
    if topic is None and len(states) == 1:
        topic = states[0]
    if topic is None:
        raise DataError(f"{path}: {have}; {'name one by topic=...' if states else 'joint states are needed'}")
    if topic not in states:
        wrong = any(x.topic == topic for x in connections)
        raise DataError(f"{path}: topic {topic!r} {'has another type' if wrong else 'is missing'}; {have}")
    return [x for x in connections if x.topic == topic and x.msgtype == _TYPE]


def _stamp(message: Any) -> int:
    return int(message.header.stamp.sec) * 10**9 + int(message.header.stamp.nanosec)


def _arrays(what: str, messages: list[Any], names: tuple[str, ...], *, exactly: bool) -> dict[str, np.ndarray]:
    """Return the arrays `[messages, joints]` in the order of the names."""
    columns = []
    for row, message in enumerate(messages):
        place = {name: k for k, name in enumerate(message.name)}
        if len(place) < len(message.name):
            raise DataError(f"{what}: message {row} names a joint twice: {', '.join(message.name)}")
        missing = [name for name in names if name not in place]
        more = [name for name in place if name not in names] if exactly else []
        if missing or more:
            lacks = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(more)}, too"
            raise DataError(
                f"{what}: message {row} {lacks}; name the joints that all messages of one source have: joints=[...]"
            )
        columns.append([place[name] for name in names])
    out = {}
    for key, field in _ARRAYS.items():
        values = [np.asarray(getattr(x, field), np.float64) for x in messages]
        present = [len(x) > 0 for x in values]
        if not any(present) and key != "q":
            continue
        bad = [k for k, (x, y) in enumerate(zip(values, messages, strict=True)) if len(x) != len(y.name)]
        if bad:
            raise DataError(
                f"{what}: message {bad[0]} has {len(messages[bad[0]].name)} names and {len(values[bad[0]])} in "
                f"{field}, as {len(bad)} of {len(messages)} messages; one {field} for each name is needed"
            )
        out[key] = np.stack([x[k] for x, k in zip(values, columns, strict=True)])
    return out

"""Data sets by name: files that lie on this machine, or are fetched on request, and are what they should be."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from jaxdyn._errors import DataError, look_up


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Files with known content."""

    name: str
    """Name, also that of the folder with the files."""
    files: Mapping[str, str]
    """SHA-256, in hexadecimal, of each file by its path in the folder."""
    description: str
    source: str
    license: str
    url: str | None = None
    """Address of the folder; None if the source has the data in another form only."""


_ALL = (
    Dataset(
        "panda_exciting",
        {
            "first_14s.npz": "c296427341f8de8f95337f598027edfbad88825c0ef2ffecda666ebafcb2e4a0",
            "panda_no_gripper.urdf": "4a803b176f48a82cda94efb1f4577e8490531cb146d4d97abebd9ad0d1b721d0",
        },
        "Franka Emika Panda without gripper: t, q, v, tau of the first 14 s of a Fourier excitation at about 1 kHz, "
        "with jitter; torques of the link-side sensors",
        "Gaz et al., Dynamic identification of the Franka Emika Panda robot with retrieval of feasible parameters "
        "using penalty-based optimization, RA-L 2019; github.com/marcocognetti/FrankaEmikaPandaDynModel, "
        "matlab/data/Exciting_Traj/Trajectory_1/rbt_log/*.txt",
        "GPL-3.0 (recording), Apache-2.0 (URDF)",
    ),
    Dataset(
        "kuka_lwr4",
        {
            "run_1.npz": "be09dc480779b4188ff37dab7262fe99d6d9132de8055fa08eb4baf7d3a3b16b",
            "run_2.npz": "b5ec4d85f544430be855870e67e6749841b43d9aae626d40e08238542b941eec",
            "kuka_lwr4.urdf": "8fd76631f12b38404812bc343e998cc9ca3af18d850856c5b050b39ab6fc62ad",
        },
        "KUKA LWR4+: t, q, v, a, tau of two runs of one trajectory at 200 Hz; torques already low-passed",
        "github.com/kjyv/FloBaRoID, data/KUKA/HW/measurements_*.npz",
        "LGPL-3.0",
    ),
    Dataset(
        "double_pendulum",
        {
            "run_143339.npz": "c23abe018247543d4a01784320da01e855d32d6dd1bf0ddc59957f9fe5dfd1ca",
            "run_143524.npz": "d95cdb4a2941321940072cdc2acecf9895d2d67e5ee98581d851178da1f732cc",
            "run_143601.npz": "8b5b78d10513e92c1ce775a95a8b56f0d0123e4d6e150f46e08f2e4543877e51",
            "run_143704.npz": "58d437e40c2f8d68f397dede9fe3ba6f92a60ca33d665f27309577a27ba8c2f6",
            "run_144115.npz": "a4654b6adc9300878a55f40a9cfed1a37bb774bc82f48aea218af363fd6263a1",
        },
        "DFKI double pendulum, design C.1: t, q, v, tau_commanded, tau_measured of five runs of 10 s at about 500 Hz; "
        "the measured torques are motor currents, and poor",
        "Wiebe et al., Open source dual-purpose acrobot and pendubot platform, IEEE RAM 2024; "
        "github.com/dfki-ric-underactuated-lab/double_pendulum, data/system_identification",
        "BSD-3-Clause",
    ),
)
_DATASETS = {data.name: data for data in _ALL}


def dataset_names() -> tuple[str, ...]:
    """Return the names of the data sets that `fetch_dataset` knows."""
    return tuple(_DATASETS)


def dataset(name: str) -> Dataset:
    """Return the description of a data set, with its source and license. **Raises** `UnknownNameError`."""
    look_up(name, _DATASETS, "data set")
    return _DATASETS[name]


def fetch_dataset(
    data: Dataset | str, *, download: bool = False, url: str | None = None, cache: str | os.PathLike | None = None
) -> Path:
    """Return the folder with the files of a data set, each checked against its SHA-256.

    Looks in `$JAXDYN_DATA/<name>`, then in the cache: the folder `cache`, or `$JAXDYN_CACHE`, or that of the operating
    system. With `download`, `pooch` fetches missing files into the cache from the data set's address, or from `url`,
    the address of a mirror's folder. Otherwise nothing is fetched.

    **Raises** `UnknownNameError`; `DataError` for files that are missing, cannot be fetched, or have another checksum.
    """
    data = dataset(data) if isinstance(data, str) else data
    root = os.environ.get("JAXDYN_DATA")
    folder, looked_in = Path(root or "").expanduser() / data.name, ""
    if root and folder.is_dir():
        missing = [name for name in data.files if not (folder / name).is_file()]
        if missing:
            raise DataError(f"{folder} lacks {', '.join(missing)} of the data set {data.name!r}")
        return _require_checksums(folder, data, "it is another version, or damaged")
    if root:
        looked_in = f"{folder} or "
    chosen = cache or os.environ.get("JAXDYN_CACHE")
    folder = (Path(chosen).expanduser() if chosen else Path(_pooch().os_cache("jaxdyn"))) / data.name
    missing = [name for name in data.files if not (folder / name).is_file()]
    address = url or data.url
    if missing and not download:
        how = "give download=True" if address else f"its source is {data.source}"
        set_up = "" if root else "JAXDYN_DATA, which may name the folder above it, is not set; "
        raise DataError(f"the data set {data.name!r} ({data.license}) is not in {looked_in}{folder}; {set_up}{how}")
    if missing and address is None:
        raise DataError(
            f"the data set {data.name!r} has no address to download from; its source, {data.source}, has the data in "
            f"another form. Put {', '.join(missing)} into {folder}, or give the url of a mirror"
        )
    for name in missing:
        _download(f"{str(address).rstrip('/')}/{name}", data.files[name], folder / name)
    return _require_checksums(folder, data, "delete it to have it fetched again")


def _pooch():
    try:
        import pooch
    except ImportError:
        raise DataError(
            "pooch, which fetches data sets, is not installed: pip install 'jaxdyn[data]'. Or put the files below the "
            "folder that the environment variable JAXDYN_DATA names"
        ) from None
    return pooch


def _download(address: str, checksum: str, path: Path) -> None:
    pooch = _pooch()
    try:
        pooch.retrieve(address, f"sha256:{checksum}", fname=path.name, path=path.parent)
    except ValueError as error:
        # Pooch has already deleted the file.
        raise DataError(f"{address}: refused, the file is not the one that is known: {error}") from None
    except Exception as error:  # each protocol has its own
        raise DataError(
            f"{address}: cannot be fetched ({type(error).__name__}: {error}). Without a network put the file at {path}"
        ) from None


def _require_checksums(folder: Path, data: Dataset, advice: str) -> Path:
    """Return the folder. **Raises** `DataError` for a file with other content."""
    for name, expected in data.files.items():
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected:
            raise DataError(f"{folder / name}: SHA-256 {digest} instead of {expected}; {advice}")
    return folder

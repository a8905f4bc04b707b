"""Data sets are found locally, fetched from a server on this machine, checked, and refused if they differ."""

import functools
import hashlib
import http.server
import sys
import threading

import pytest

from jaxdyn import DataError, JaxdynError
from jaxdyn.sysid import Dataset, dataset, dataset_names, fetch_dataset

CONTENT = b"t,q\n0,1\n"
CHECKSUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _clear_environment(monkeypatch):
    for name in ("JAXDYN_DATA", "JAXDYN_CACHE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(tmp_path):
    """The address of a server for the folder `served`, and that folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", folder
        running.shutdown()
        thread.join()


def runs(url: str | None = None, checksum: str = CHECKSUM) -> Dataset:
    return Dataset("runs", {"run.csv": checksum}, "One run", "a notebook", "CC0-1.0", url)


def test_files_are_fetched_once_on_request(server, tmp_path):
    pytest.importorskip("pooch")
    address, served = server
    (served / "run.csv").write_bytes(CONTENT)
    cache = tmp_path / "cache"
    with pytest.raises(DataError, match=r"'runs' \(CC0-1.0\) is not in .*cache/runs; JAXDYN_DATA.*download=True"):
        fetch_dataset(runs(address), cache=cache)
    assert not cache.exists()
    folder = fetch_dataset(runs(address), download=True, cache=cache)
    assert folder == cache / "runs"
    assert (folder / "run.csv").read_bytes() == CONTENT
    # The cache now serves the files without the server and without `download=True`.
    (served / "run.csv").unlink()
    assert fetch_dataset(runs(address), cache=cache) == folder
    assert fetch_dataset(runs(address), download=True, cache=cache) == folder


def test_a_wrong_file_is_refused_and_not_kept(server, tmp_path):
    pytest.importorskip("pooch")
    address, served = server
    (served / "run.csv").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"/run\.csv: refused, the file is not the one that is known"):
        fetch_dataset(runs(address), download=True, cache=tmp_path / "cache")
    assert not (tmp_path / "cache" / "runs" / "run.csv").exists()


def test_a_damaged_file_in_the_cache_is_named(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run.csv").write_bytes(b"half")
    with pytest.raises(DataError, match=r"run\.csv: SHA-256 .* instead of .*; delete it"):
        fetch_dataset(runs(), cache=tmp_path)


def test_without_a_network_the_message_says_where_the_file_goes(tmp_path):
    pytest.importorskip("pooch")
    with pytest.raises(
        DataError, match=r"127\.0\.0\.1:9/run\.csv: cannot be fetched .*put the file at .*runs/run\.csv"
    ):
        fetch_dataset(runs("http://127.0.0.1:9"), download=True, cache=tmp_path)


def test_files_of_the_user_come_first(server, tmp_path, monkeypatch):
    folder = tmp_path / "data" / "runs"
    folder.mkdir(parents=True)
    monkeypatch.setenv("JAXDYN_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match=r"lacks run\.csv of the data set 'runs'"):
        fetch_dataset(runs())
    (folder / "run.csv").write_bytes(CONTENT)
    assert fetch_dataset(runs()) == folder
    (folder / "run.csv").write_bytes(b"another version")
    with pytest.raises(DataError, match="it is another version, or damaged"):
        fetch_dataset(runs())


def test_a_mirror_may_be_named(server, tmp_path):
    pytest.importorskip("pooch")
    address, served = server
    with pytest.raises(DataError, match=r"has no address to download .* give the url of a mirror"):
        fetch_dataset(runs(), download=True, cache=tmp_path)
    (served / "run.csv").write_bytes(CONTENT)
    assert (fetch_dataset(runs(), download=True, url=address + "/", cache=tmp_path) / "run.csv").is_file()


def test_without_pooch_there_is_advice(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"pip install 'jaxdyn\[data\]'"):
        fetch_dataset(runs("http://127.0.0.1:9"), download=True, cache=tmp_path)


def test_known_data_sets():
    assert set(dataset_names()) == {"panda_exciting", "kuka_lwr4", "double_pendulum"}
    for name in dataset_names():
        data = dataset(name)
        assert data.name == name
        assert data.license
        assert data.source
        assert all(len(x) == 64 for x in data.files.values())
    with pytest.raises(JaxdynError, match="did you mean 'kuka_lwr4'"):
        fetch_dataset("kuka_lwr")

"""The checkpoint store survives kills, full disks, damage and hostile files (cases C44, C45)."""

from __future__ import annotations

import errno
import math
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from common import manifest as manifests
from common.checkpoints import REMOVING, WRITING, Checkpoint, CheckpointStore
from common.errors import CheckpointError
from common.files import RealFiles
from common.manifest import CheckpointInfo

TENSORS, DOCUMENT, MANIFEST = "tensors.safetensors", "actors.msgpack", "manifest.json"


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the store may catch it."""


class FaultyFiles(RealFiles):
    """Counts operations; at number `at` does `what` instead (or does half of a write first)."""

    def __init__(self, at: int, fault: Callable[[], BaseException], *, half: bool = False) -> None:
        self.at, self.fault, self.half, self.count = at, fault, half, 0
        self.log: list[str] = []

    def _step(self, name: str, path: Path) -> bool:
        self.count += 1
        self.log.append(f"{name} {path.name}")
        return self.count == self.at

    def make_directory(self, path: Path) -> None:
        if self._step("make_directory", path):
            raise self.fault()
        super().make_directory(path)

    def write(self, path: Path, data: bytes) -> None:
        if self._step("write", path):
            if self.half:
                path.write_bytes(data[: len(data) // 2])
            raise self.fault()
        super().write(path, data)

    def rename(self, source: Path, target: Path) -> None:
        if self._step("rename", target):
            raise self.fault()
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        if self._step("sync_directory", path):
            raise self.fault()
        super().sync_directory(path)

    def remove_tree(self, path: Path) -> None:
        if self._step("remove_tree", path):
            if self.half:
                for part in sorted(path.iterdir())[:1]:
                    part.unlink()
            raise self.fault()
        super().remove_tree(path)


def no_fault() -> BaseException:
    raise AssertionError("not reached")


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def save(store: CheckpointStore, update: int, score: float | None = None) -> CheckpointInfo:
    return store.save(
        update,
        tensors={"w": np.full((3, 4), update, np.float32), "step": np.array(update)},
        documents={"actors": b"state of %d" % update},
        meta={"update": update, "term": 1},
        score=score,
    )


def assert_whole(checkpoint: Checkpoint) -> None:
    """All parts are of the one step that the name tells."""
    update = checkpoint.info.update
    assert checkpoint.tensors["w"].tolist() == [[update] * 4] * 3
    assert checkpoint.tensors["step"].shape == ()
    assert checkpoint.documents == {"actors": b"state of %d" % update}
    assert checkpoint.meta == {"update": update, "term": 1}


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def fail_on_skip(name: str, error: CheckpointError) -> None:
    raise AssertionError(f"{name} was skipped: {error}")


def newest(store: CheckpointStore) -> Checkpoint:
    checkpoint = store.newest_good(fail_on_skip)
    assert checkpoint is not None
    assert_whole(checkpoint)
    return checkpoint


# What goes in comes out


def test_round_trip_is_bitwise_for_every_dtype_and_layout(tmp_path: Path) -> None:
    """Every stored dtype, 0-d, empty, transposed, strided and big-endian arrays come back bit for bit, writable."""
    base = np.arange(12).reshape(3, 4)
    tensors = {kind: base.astype(kind) for kind in ("bool", "int8", "uint16", "uint64", "float16", "float64")}
    tensors |= {"zero_d": np.array(2.5), "empty": np.zeros((0, 3), np.int32), "turned": base.T, "strided": base[:, ::2]}
    tensors |= {"odd": np.array([np.nan, -0.0, np.inf, 5e-324]), "big": base.astype(">f4")}
    store = CheckpointStore(tmp_path)
    info = store.save(1, tensors=tensors, documents={}, meta={}, score=None)
    loaded = store.load(info.name).tensors
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype.newbyteorder("="), name
        assert loaded[name].shape == tensor.shape, name
        assert loaded[name].tobytes() == tensor.astype(tensor.dtype.newbyteorder("=")).tobytes(), name
        loaded[name][...] = 0


def test_meta_keeps_floats_that_are_not_finite(tmp_path: Path) -> None:
    """Infinity and NaN in meta survive, and the file is strict JSON all the same."""
    store = CheckpointStore(tmp_path)
    info = store.save(1, tensors={}, documents={}, meta={"clip": math.inf, "loss": math.nan}, score=None)
    assert "Infinity" not in (tmp_path / info.name / MANIFEST).read_text()
    meta = store.load(info.name).meta
    assert meta["clip"] == math.inf
    assert math.isnan(meta["loss"])


def test_the_format_is_what_docs_say(tmp_path: Path) -> None:
    """Golden bytes: directory, file names, digests and manifest of schema 1."""
    info = CheckpointStore(tmp_path).save(
        40, tensors={"a": np.array([1, 2], np.uint8)}, documents={"b": b"c"}, meta={"m": 1}, score=0.5
    )
    path = tmp_path / "update-000000040"
    assert sorted(file.name for file in path.iterdir()) == ["b.msgpack", MANIFEST, TENSORS]
    assert safetensors.numpy.load_file(path / TENSORS)["a"].tolist() == [1, 2]
    tensors = (path / TENSORS).read_bytes()
    body = (
        f'{{"schema":1,"update":40,"score":0.5,"meta":{{"m":1}},"files":{{"{TENSORS}":{{"bytes":{len(tensors)},'
        f'"sha256":"{sha256(tensors).hexdigest()}"}},"b.msgpack":{{"bytes":1,"sha256":"{sha256(b"c").hexdigest()}"}}}}}}'
    )
    digest = sha256(body.encode()).hexdigest()
    assert (path / MANIFEST).read_text() == f'{{"manifest":{body},"sha256":"{digest}"}}\n'
    assert info == CheckpointInfo(
        name="update-000000040", update=40, score=0.5, digest=digest, num_bytes=len(tensors) + 1
    )


def test_a_saved_checkpoint_does_not_alias_live_parameters(tmp_path: Path) -> None:
    """Training on after `save` changes nothing that was saved (C12)."""
    store, live = CheckpointStore(tmp_path), np.zeros(4)
    info = store.save(1, tensors={"w": live}, documents={}, meta={}, score=None)
    live += 1
    assert store.load(info.name).tensors["w"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("tensors", "documents", "meta", "said"),
    [
        ({"w": np.array([object()])}, {}, {}, "tensor 'w'"),
        ({"w": np.array(["text"])}, {}, {}, "tensor 'w'"),
        ({"w": [1.0]}, {}, {}, "got list"),
        ({"__metadata__": np.zeros(1)}, {}, {}, "__metadata__"),
        ({}, {"../escape": b""}, {}, "'../escape'"),
        ({}, {"": b""}, {}, "file name"),
        ({}, {}, {"x": np.float64(1)}, "$.meta.x: got float64"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name_before_anything_is_written(
    tmp_path: Path, tensors: dict, documents: dict, meta: dict, said: str
) -> None:
    """Object arrays, text, lists, path-like names and values that are not plain."""
    with pytest.raises(CheckpointError) as caught:
        CheckpointStore(tmp_path).save(1, tensors=tensors, documents=documents, meta=meta, score=None)
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# Killed or failing in the middle of a save


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A store with updates 10, 20 and 30; with keep_last up to 3 the next save removes at least one."""
    store = CheckpointStore(tmp_path, keep_last=3)
    for update in (10, 20, 30):
        save(store, update)
    return tmp_path


def test_the_points_of_a_save_are_the_ones_the_fault_tests_visit(three: Path) -> None:
    """Files first, manifest last, sync, rename, sync; only then retention."""
    files = FaultyFiles(0, no_fault)
    save(CheckpointStore(three, keep_last=3, files=files), 40)
    aside = files.log[0].removeprefix("make_directory ")
    assert aside.startswith(f"{WRITING}update-000000040-")
    assert files.log == [
        f"make_directory {aside}",
        f"write {TENSORS}",
        f"write {DOCUMENT}",
        f"write {MANIFEST}",
        f"sync_directory {aside}",
        "rename update-000000040",
        f"sync_directory {three.name}",
        f"rename {REMOVING}update-000000010",
        f"remove_tree {REMOVING}update-000000010",
    ]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("at", range(1, 10))
@pytest.mark.parametrize("update", [30, 40])
def test_killed_at_any_point_the_newest_is_whole_and_nothing_is_left_after_the_next_save(
    three: Path, at: int, half: bool, update: int
) -> None:
    """A kill before the rename leaves 30 as newest, one after it the new one; a rewrite of 30 is never without 30."""
    files = FaultyFiles(at, Killed, half=half)
    with pytest.raises(Killed):
        save(CheckpointStore(three, keep_last=2, files=files), update)
    store = CheckpointStore(three, keep_last=2)
    assert newest(store).info.update == (update if at > 6 else 30)
    save(store, 50)
    assert {name for name in listing(three) if name.startswith(".")} == set()
    assert newest(store).info.update == 50


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failing_disk_is_said_and_leaves_the_earlier_checkpoints(three: Path, at: int, code: int) -> None:
    """The error names file, bytes and remedy; the temporary directory is gone; 30 is still good."""
    files = FaultyFiles(at, lambda: OSError(code, os.strerror(code)), half=True)
    with pytest.raises(CheckpointError) as caught:
        save(CheckpointStore(three, files=files), 40)
    text = str(caught.value)
    assert errno.errorcode[code] in text
    assert str(three) in text
    assert "bytes to" in text
    assert "earlier checkpoints are as they were" in text
    assert [name for name in listing(three) if name.startswith(".")] == []
    names = CheckpointStore(three).names()
    assert names[:3] == ["update-000000010", "update-000000020", "update-000000030"]
    assert newest(CheckpointStore(three)).info.update == (40 if at == 7 else 30)


def test_a_disk_that_cannot_even_clean_up_is_said_in_the_detail(three: Path) -> None:
    """The first fault is the error; the second is in its detail, not lost, and the next save cleans up."""

    class Dying(RealFiles):
        def write(self, path: Path, data: bytes) -> None:
            raise disk_full()

        def remove_tree(self, path: Path) -> None:
            raise OSError(errno.EIO, "no cleaning")

    with pytest.raises(CheckpointError, match="ENOSPC") as caught:
        save(CheckpointStore(three, files=Dying()), 40)
    assert "no cleaning" in caught.value.detail
    assert any(name.startswith(WRITING) for name in listing(three))
    save(CheckpointStore(three), 40)
    assert not any(name.startswith(WRITING) for name in listing(three))


@pytest.mark.parametrize("at", [8, 9])
def test_a_failure_to_remove_an_old_one_says_that_the_new_one_is_good(three: Path, at: int) -> None:
    """Retention comes after success and cannot undo it."""
    files = FaultyFiles(at, disk_full, half=True)
    with pytest.raises(CheckpointError, match=r"update-000000040 is saved and good, but .*update-000000010"):
        save(CheckpointStore(three, files=files), 40)
    assert newest(CheckpointStore(three)).info.update == 40


KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
import numpy as np
from common.checkpoints import CheckpointStore
from common.files import RealFiles

class Deadly(RealFiles):
    count = 0
    def _step(self):
        Deadly.count += 1
        if Deadly.count == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
    def write(self, path, data):
        super().write(path, data); self._step()
    def rename(self, source, target):
        super().rename(source, target); self._step()

store = CheckpointStore(Path(sys.argv[1]), keep_last=1, files=Deadly())
store.save(40, tensors={"w": np.full((3, 4), 40, np.float32), "step": np.array(40)},
           documents={"actors": b"state of 40"}, meta={"update": 40, "term": 1}, score=None)
"""


@pytest.mark.parametrize(("at", "update"), [(1, 30), (3, 30), (4, 40), (5, 40)])
def test_a_real_sigkill_leaves_a_whole_checkpoint_and_the_heir_cleans_up(three: Path, at: int, update: int) -> None:
    """After the first file, after the manifest, after the rename, in the middle of retention."""
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(three), str(at)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    store = CheckpointStore(three)
    assert newest(store).info.update == update
    assert len(store.clean_stale()) == (0 if at == 4 else 1)
    assert [name for name in listing(three) if name.startswith(".")] == []
    assert newest(store).info.update == update


def test_the_directory_of_a_living_writer_is_left_alone(three: Path) -> None:
    """A temporary directory is stale only when its writer is dead, of another boot, or this very process."""
    own = CheckpointStore(three)._writer
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as living:
        ticks = Path(f"/proc/{living.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        boot = sha256(own.boot_id.encode()).hexdigest()[:8]
        alive = f"{WRITING}update-000000040-{living.pid}.{ticks}.{boot}"
        reused = f"{WRITING}update-000000040-{living.pid}.{int(ticks) + 1}.{boot}"
        rebooted = f"{WRITING}update-000000040-{living.pid}.{ticks}.00000000"
        nonsense = f"{WRITING}nonsense"
        for name in (alive, reused, rebooted, nonsense):
            (three / name).mkdir()
        assert sorted(CheckpointStore(three).clean_stale()) == sorted([reused, rebooted, nonsense])
        assert living.stdin is not None
        living.stdin.close()
    assert CheckpointStore(three).clean_stale() == [alive]


# Damage


def skipped_names(store: CheckpointStore) -> tuple[Checkpoint | None, dict[str, str]]:
    skipped: dict[str, str] = {}
    checkpoint = store.newest_good(lambda name, error: skipped.update({name: str(error)}))
    return checkpoint, skipped


def assert_falls_back(directory: Path, said: str) -> None:
    """30 is skipped by name with a reason that holds `said`; 20 is taken whole; 30 cannot be loaded by name either."""
    store = CheckpointStore(directory)
    checkpoint, skipped = skipped_names(store)
    assert checkpoint is not None
    assert checkpoint.info.update == 20
    assert_whole(checkpoint)
    assert list(skipped) == ["update-000000030"]
    assert said in skipped["update-000000030"]
    with pytest.raises(CheckpointError):
        store.load("update-000000030")


@pytest.mark.parametrize("file", [TENSORS, DOCUMENT, MANIFEST])
@pytest.mark.parametrize("sixteenth", range(16))
def test_a_file_cut_at_any_sixteenth_is_skipped(three: Path, file: str, sixteenth: int) -> None:
    """Truncation anywhere, in any file."""
    path = three / "update-000000030" / file
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * sixteenth // 16])
    assert_falls_back(three, f"{file} is {'damaged' if file == MANIFEST else 'cut short'}")


@pytest.mark.parametrize("file", [TENSORS, DOCUMENT, MANIFEST])
def test_a_flip_of_any_bit_is_seen(three: Path, file: str) -> None:
    """One flipped bit at any place of any file, meta and score in the manifest included."""
    path, store = three / "update-000000030" / file, CheckpointStore(three)
    data = path.read_bytes()
    for place in range(len(data)):
        bit = 1 << (place % 8)
        path.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match=file):
            store.load("update-000000030")
    path.write_bytes(data + b"\n")
    assert_falls_back(three, file)


@pytest.mark.parametrize("file", [TENSORS, DOCUMENT, MANIFEST])
def test_a_missing_part_is_skipped(three: Path, file: str) -> None:
    """Incomplete is not good."""
    (three / "update-000000030" / file).unlink()
    assert_falls_back(three, f"{file} is missing")


@pytest.mark.parametrize("file", [TENSORS, DOCUMENT, MANIFEST])
def test_a_part_of_another_step_is_seen(three: Path, file: str) -> None:
    """Parts of two steps are never mixed, though each is undamaged and of the right size."""
    (three / "update-000000030" / file).write_bytes((three / "update-000000010" / file).read_bytes())
    assert_falls_back(three, file)


def test_a_renamed_checkpoint_is_seen(three: Path) -> None:
    """The name of the directory must agree with the manifest."""
    (three / "update-000000030").rename(three / "update-000000099")
    checkpoint, skipped = skipped_names(CheckpointStore(three))
    assert checkpoint is not None
    assert checkpoint.info.update == 20
    assert "describes another checkpoint; got update 30" in skipped["update-000000099"]


def test_an_unreadable_device_is_a_reason_to_skip_not_to_crash(three: Path) -> None:
    """EIO while reading is told like any other damage."""

    class Unreadable(RealFiles):
        def read(self, path: Path, *, most: int) -> bytes:
            if path.parent.name == "update-000000030":
                raise OSError(errno.EIO, "bad sector")
            return super().read(path, most=most)

    checkpoint, skipped = skipped_names(CheckpointStore(three, files=Unreadable()))
    assert checkpoint is not None
    assert checkpoint.info.update == 20
    assert "bad sector" in skipped["update-000000030"]


def test_all_damaged_is_an_error_and_none_at_all_is_none(three: Path, tmp_path: Path) -> None:
    """A run never starts from nothing because its checkpoints went bad."""
    for name in ("update-000000010", "update-000000020", "update-000000030"):
        (three / name / DOCUMENT).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no good checkpoint.*3 damaged or incomplete"):
        CheckpointStore(three).newest_good(lambda name, error: None)
    assert CheckpointStore(tmp_path / "nowhere").newest_good(fail_on_skip) is None


class Hostile:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("file", [TENSORS, MANIFEST])
def test_a_hostile_pickle_runs_no_code_even_with_matching_digests(three: Path, tmp_path: Path, file: str) -> None:
    """Whoever can write the manifest as well gets an error, not an execution (C45)."""
    hostile = pickle.dumps(Hostile(tmp_path / "executed"))
    path = three / "update-000000030"
    (path / file).write_bytes(hostile)
    if file == TENSORS:
        parts = {TENSORS: hostile, DOCUMENT: (path / DOCUMENT).read_bytes()}
        (path / MANIFEST).write_bytes(manifests.describe(update=30, score=None, meta={}, parts=parts).encoded)
    assert_falls_back(three, file)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({TENSORS: b"", "../../outside.msgpack": b"x"}, "file name '../../outside.msgpack'"),
        ({TENSORS: b"", "/etc/hostname": b"x"}, "file name '/etc/hostname'"),
        ({DOCUMENT: b""}, TENSORS),
    ],
)
def test_a_manifest_cannot_point_out_of_its_directory(three: Path, parts: dict[str, bytes], said: str) -> None:
    """File names of a manifest are checked though its digest is right."""
    encoded = manifests.describe(update=30, score=None, meta={}, parts=parts).encoded
    (three / "update-000000030" / MANIFEST).write_bytes(encoded)
    assert_falls_back(three, said)


def test_a_newer_schema_is_named_as_such(three: Path) -> None:
    """A checkpoint of a newer truestep is not called damaged."""
    path = three / "update-000000030" / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"schema":1', b'"schema":2'))
    assert_falls_back(three, "newer truestep; got schema 2; allowed: up to 1")


@pytest.mark.parametrize("name", ["../update-000000030", "update-30", "", ".writing-update-000000030-1.2.3"])
def test_only_names_of_checkpoints_are_loaded(three: Path, name: str) -> None:
    """`load` takes no paths."""
    with pytest.raises(CheckpointError, match="not the name of a checkpoint"):
        CheckpointStore(three).load(name)


# Retention


def test_saving_an_update_again_replaces_it_by_a_revision(three: Path) -> None:
    """The second save of 30 stands under a name of its own; the first goes only afterwards."""
    store = CheckpointStore(three)
    assert save(store, 30).name == "update-000000030.1"
    assert save(store, 30).name == "update-000000030.2"
    assert store.names() == ["update-000000010", "update-000000020", "update-000000030.2"]
    assert newest(store).info.name == "update-000000030.2"


def test_the_best_is_kept_beside_the_last_and_ties_go_to_the_newest(tmp_path: Path) -> None:
    """Worked by hand: scores 1, 5, 5, none, 2, NaN with keep_last=1 end with {the second 5, the last}."""
    store = CheckpointStore(tmp_path, keep_last=1)
    for update, score in ((1, 1.0), (2, 5.0), (3, 5.0), (4, None), (5, 2.0), (6, math.nan)):
        save(store, update, score)
    assert [info.update for info in store.infos()] == [3, 6]
    best = store.best()
    assert best is not None
    assert (best.update, best.score) == (3, 5.0)


def test_a_negative_best_is_a_best(tmp_path: Path) -> None:
    """Zero is not special: the least negative score wins, minus infinity counts as a score."""
    store = CheckpointStore(tmp_path)
    for update, score in ((1, -math.inf), (2, -3.0), (3, -7.0)):
        save(store, update, score)
    best = store.best()
    assert best is not None
    assert best.update == 2


def test_retention_leaves_what_it_cannot_read(three: Path) -> None:
    """An unreadable manifest may be a passing fault of the disk: that directory is not removed, nor counted."""
    (three / "update-000000010" / MANIFEST).write_bytes(b"{}")
    save(CheckpointStore(three, keep_last=1), 40)
    assert CheckpointStore(three).names() == ["update-000000010", "update-000000040"]


def test_discard_after_removes_the_line_that_was_given_up(three: Path) -> None:
    """After a rollback to 10 the next resume must find 10, not 30."""
    store = CheckpointStore(three)
    assert store.discard_after(10) == ["update-000000020", "update-000000030"]
    assert newest(store).info.update == 10


SAVES = st.lists(
    st.tuples(st.integers(0, 8), st.none() | st.integers(-2, 2).map(float), st.integers(0, 12), st.booleans()),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=40)
@given(saves=SAVES, keep_last=st.integers(1, 3))
def test_whatever_is_saved_or_killed_the_last_success_survives(
    tmp_path_factory: pytest.TempPathFactory, saves: list, keep_last: int
) -> None:
    """Updates in any order, scores and kills at any point: what a save returned is loadable until the next success;
    at most keep_last updates and the best remain after a success; the best score known is never lost."""
    directory = tmp_path_factory.mktemp("store")
    for update, score, at, half in saves:
        store = CheckpointStore(directory, keep_last=keep_last, files=FaultyFiles(at, Killed, half=half))
        before = {info.update: info for info in store.infos()}
        try:
            saved = save(store, update, score)
        except Killed:
            after = CheckpointStore(directory, keep_last=keep_last)
            if before:
                assert newest(after).info.update >= max(before)
            continue
        assert_whole(store.load(saved.name))
        infos = store.infos()
        assert len({info.update for info in infos}) == len(infos) <= keep_last + 2
        candidates = {**before, saved.update: saved}.values()
        scored = [info.score for info in candidates if info.score is not None]
        best = store.best()
        assert (best.score if best else None) == max(scored, default=None)


def test_keep_last_must_keep_one(tmp_path: Path) -> None:
    """A store that keeps nothing is refused."""
    with pytest.raises(ValueError, match="keep_last: got 0"):
        CheckpointStore(tmp_path, keep_last=0)

"""Damaged tables: with a declared schema a damaged line or cell harms nothing but itself."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.tables import schema_of

from privfed.data.tables.forgiving_text import CHUNK, ForgivingStream
from privfed.data.tables.table_loading import read_rows_for
from privfed.foundation.errors import ConfigError

HEADER = b"user,age,size,share,city,tag,y\n"
GOOD = b"".join(b"u%d,%d,1,.5,A,t,%d\n" % (i % 3, i, i) for i in range(9))
DAMAGED = {
    "bad byte": b"u1,\xff,1,.5,A,t,7\n",
    "bad byte in a name": b"u\xff1,1,1,.5,A,t,7\n",
    "zero byte": b"u1,1,1,.5,A\0,t,7\n",
    "open quote": b'u1,1,1,.5,"A,t,7\n',
    "quote inside": b'u1,1"2,1,.5,"A,t,7\n',
    "text after a quote": b'u1,1,1,.5,"A"x,t,7\n',
    "too few": b"u1,1\n",
    "too many": b"u1,1,1,.5,A,t,7,8,9\n",
    "no target": b"u1,1,1,.5,A,t,\n",
    "too long": b"u1," + b"9" * 9_000_000 + b",1,.5,A,t,7\n",
    "a byte order mark": b"\xef\xbb\xbfu1,1,1,.5,A,t,7\n",
    "half a letter at the end": b"u1,1,1,.5,A,t,\xc3",
}


@pytest.mark.parametrize("zipped", [False, True], ids=["csv", "gz"])
@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize("place", [0, 4, 9])
def test_all_other_rows_are_read_as_they_are(tmp_path, kind, place, zipped):
    if zipped and kind == "too long" and place:
        pytest.skip("the same as elsewhere, and slow")
    lines = GOOD.splitlines(keepends=True)
    if kind.startswith("half") and place < 9:
        pytest.skip("only the last line may lack its end")
    path = tmp_path / "t.csv"

    def read(content):
        path.write_bytes(gzip.compress(content, 1) if zipped else content)
        return read_rows_for(schema_of(), path)

    whole = read(HEADER + GOOD)
    found = read(HEADER + b"".join([*lines[:place], DAMAGED[kind], *lines[place:]]))
    extra = len(found) - len(whole)
    assert extra in (0, 1)
    others = np.delete(np.arange(len(found)), place) if extra else np.arange(len(found))
    for name in ("numbers", "codes", "target"):
        np.testing.assert_array_equal(getattr(found, name)[others], getattr(whole, name))
    names = [found.names[i] for i in found.who[others]]
    assert names == [whole.names[i] for i in whole.who]


def test_without_a_declared_schema_it_is_an_error_that_names_the_line(tmp_path):
    (tmp_path / "t.csv").write_bytes(HEADER + GOOD + DAMAGED["too few"])
    with pytest.raises(ConfigError, match="line 11 has 2 values"):
        read_rows_for(schema_of(), tmp_path / "t.csv", strict=True)


def test_text_in_parquet_that_is_none(tmp_path):
    size = 4
    offsets = pa.py_buffer(np.array([0, 1, 2, 3, 4], dtype=np.int32).tobytes())
    city = pa.Array.from_buffers(pa.string(), size, [None, offsets, pa.py_buffer(b"A\xffBC")])
    columns = {"user": ["a", "a", "b", "b"], "city": city, "tag": ["t"] * size}
    columns |= dict.fromkeys(("age", "size", "share", "y"), pa.array([1.0] * size))
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = read_rows_for(schema_of(), tmp_path / "t.parquet")
    assert found.codes[:, 0].tolist() == [0, -1, 1, 2]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_sound_text_passes_unchanged_whatever_ends_its_lines(end):
    text = end.join([b'x,"y, z",1'] * (CHUNK // 8)) + end
    with io.BufferedReader(ForgivingStream(io.BytesIO(text), ",")) as stream:
        assert stream.read() == text

"""Reading of a table: a schema, declared or inferred, and the rows as compact arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from privfed.data.tables.encoding import EncodedTable, Encoder
from privfed.data.tables.memory_limit import MemoryProbe, available_memory, check_memory
from privfed.data.tables.options import Options
from privfed.data.tables.schema import Schema
from privfed.data.tables.schema_inference import infer, require
from privfed.data.tables.table_opening import open_table
from privfed.foundation.errors import ConfigError, nearest


def read_table(
    options: Options, memory: MemoryProbe = available_memory
) -> tuple[Schema, EncodedTable]:
    """Read a table.

    With a declared schema no cell is an error, because an error would disclose a user's data. Cells
    that do not fit count as missing.

    Args:
        options: which file, and what its columns mean.
        memory: returns the available bytes.

    Returns:
        The schema and the rows.

    Raises:
        ConfigError: if the settings or the file cannot be used.
    """
    table = open_table(str(options.path), forgiving=options.schema is not None)
    if options.schema is None:
        check_memory(
            table, len(options.features or set(table.header).difference(options.ignore)), memory
        )
        schema, notes = infer(table, options)
    else:
        schema, notes = _declared(options), ()
    frame = read_rows_for(schema, table.path, memory=memory, users_needed=True)
    return schema, replace(frame, notes=notes + frame.notes)


def read_rows_for(
    schema: Schema,
    path: str | Path,
    need_target: bool = True,
    strict: bool | None = None,
    users_needed: bool = False,
    memory: MemoryProbe = available_memory,
) -> EncodedTable:
    """Read the rows of a file with a known schema. Values that it does not list count as none.

    Args:
        schema: meaning of the columns.
        path: CSV or Parquet file.
        need_target: whether rows without a target are left out. Otherwise their target is NaN, and
            the file may lack the column.
        strict: whether a cell that does not fit is an error; None: unless the schema is declared.
        users_needed: whether the columns of users and time must exist. Without a column of users
            all rows belong to one user "".
        memory: returns the available bytes.

    Raises:
        ConfigError: if the file cannot be read, lacks a column or has a cell that does not fit.
    """
    lenient = schema.declared if strict is None else not strict
    table = open_table(path, forgiving=lenient)
    for name in schema.columns:
        require(table, name, "a feature")
    if need_target:
        require(table, schema.target.name, "data.target")
    if users_needed:
        require(table, schema.user, "data.user")
        if schema.time is not None:
            require(table, schema.time, "data.time")
    wanted = [
        schema.user,
        schema.target.name,
        schema.time,
        *schema.columns,
    ]
    names = [name for name in dict.fromkeys(wanted) if name in table.header]
    check_memory(table, len(schema.features), memory)
    encoder = Encoder(table, schema, need_target, strict=not lenient)
    for first, columns in table.batches(names):
        encoder.add(first, columns)
    return encoder.finish()


def read_schema(path: str | Path) -> Schema:
    """Read a declared schema from its file.

    Raises:
        ConfigError: if the file cannot be read or is no schema.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError.of("data.schema", path, f"cannot be read ({why})") from error
    return Schema.from_yaml(text, str(path))


def _declared(options: Options) -> Schema:
    """Read the schema file; raise a ConfigError if other settings contradict it."""
    schema = read_schema(str(options.schema))
    for key, given, known in (
        ("target", options.target, schema.target.name),
        ("time", options.time, schema.time),
    ):
        if given is not None and given != known:
            raise ConfigError.of(
                f"data.{key}",
                given,
                f"data.schema={options.schema} says {known!r}; change it in that file",
            )
    if schema.missing == "refuse":
        allowed = nearest("refuse", ("mean", "indicator", "drop"))
        raise ConfigError(
            f"{options.schema}: missing=refuse: to refuse would tell about a user's data; {allowed}"
        )
    return schema

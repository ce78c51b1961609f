"""Arrays <-> Arrow columns, and images <-> PNG."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from rollbus_core.datasets.features import PNG_MODES, Feature
from rollbus_wire.errors import ConfigError


def to_arrow(feature: Feature, values: np.ndarray) -> Any:
    """An Arrow array of T items from ``values`` [T, ...]."""
    import pyarrow as pa

    if feature.is_image:
        pictures = [{"bytes": encode_png(picture), "path": None} for picture in values]
        return pa.array(pictures, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    flat = np.ascontiguousarray(values, feature.dtype).reshape(-1)
    column = pa.array(flat)
    if feature.shape == (1,):
        return column
    for size in reversed(feature.shape[1:]):
        column = pa.ListArray.from_arrays(_offsets(len(column), size), column)
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(column, feature.shape[0])
    return pa.ListArray.from_arrays(_offsets(len(column), feature.shape[0]), column)


def _offsets(num: int, size: int) -> Any:
    import pyarrow as pa

    return pa.array(np.arange(0, num + 1, size, dtype=np.int32))


def from_arrow(feature: Feature, column: Any, where: str, first_row: int) -> np.ndarray:
    """[T, *shape] of an Arrow column. Raises `ConfigError` naming file and row of what does not fit."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if feature.is_image:
        return _pictures(feature, column, where, first_row)
    count = len(column)
    _refuse_missing(feature, column, where, first_row)
    while pa.types.is_nested(column.type):
        if not hasattr(column, "flatten") or pa.types.is_struct(column.type):
            raise ConfigError(f"{where}: {feature.name} is {column.type}, not an array of numbers")
        _refuse_ragged(feature, column, where, first_row, count)
        column = column.flatten()
    if pa.types.is_boolean(column.type):
        flat = np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
    elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        flat = column.to_numpy(zero_copy_only=False)
    else:
        raise ConfigError(f"{where}: {feature.name} is {column.type}, info.json says {feature.dtype}")
    size = int(np.prod(feature.shape, dtype=np.int64))
    if flat.size != count * size:
        raise ConfigError(
            f"{where} from row {first_row}: {feature.name} has {flat.size} numbers in {count} rows, "
            f"info.json says {list(feature.shape)} each"
        )
    return flat.reshape(count, *feature.shape)


def _refuse_missing(feature: Feature, column: Any, where: str, first_row: int) -> None:
    if column.null_count:
        row = first_row + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise ConfigError(f"{where} row {row}: {feature.name} is missing (null)")


def _refuse_ragged(feature: Feature, column: Any, where: str, first_row: int, count: int) -> None:
    import pyarrow.compute as pc

    sizes = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    if not len(sizes):
        return
    # The outermost dimension is stated; further ones are as the first item has them, and counted at the end.
    expected = feature.shape[0] if len(sizes) == count else sizes[0]
    wrong = np.flatnonzero(sizes != expected)
    if len(wrong):
        row = first_row + int(wrong[0]) * count // max(1, len(sizes))
        raise ConfigError(
            f"{where} row {row}: {feature.name} has {sizes[wrong[0]]} elements, info.json says "
            f"{list(feature.shape)}"
        )


def encode_png(picture: np.ndarray) -> bytes:
    """uint8 [H, W, C] as PNG."""
    from PIL import Image

    data = io.BytesIO()
    squeezed = picture[..., 0] if picture.shape[-1] == 1 else picture
    Image.fromarray(np.ascontiguousarray(squeezed)).save(data, "PNG", compress_level=1)
    return data.getvalue()


def _pictures(feature: Feature, column: Any, where: str, first_row: int) -> np.ndarray:
    result = np.empty((len(column), *feature.shape), np.uint8)
    for place, item in enumerate(column.to_pylist()):
        data = item.get("bytes") if isinstance(item, dict) else item
        at = f"{where} row {first_row + place}: {feature.name}"
        if not isinstance(data, bytes):
            raise ConfigError(f"{at} holds no image bytes; images beside the parquet files are not read")
        result[place] = _decode(feature, data, at)
    return result


def _decode(feature: Feature, data: bytes, at: str) -> np.ndarray:
    from PIL import Image

    height, width, channels = feature.shape
    if channels not in PNG_MODES:
        raise ConfigError(f"{at}: an image has 1, 3 or 4 channels, info.json says {channels}")
    try:
        # The header is read first: nothing is decoded that is larger than stated.
        image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
        if image.size != (width, height):
            raise ConfigError(f"{at} is {image.size[1]} x {image.size[0]}, info.json says {height} x {width}")
        pixels = np.asarray(image.convert(PNG_MODES[channels]))
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(f"{at} is no readable image: {error}") from None
    return pixels.reshape(feature.shape)

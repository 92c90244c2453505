"""Work on many files in parallel: small inputs in this process, large ones in Spark's workers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from heapq import heapreplace
from math import ceil
from typing import TYPE_CHECKING, Final, TypeVar

from freshq_pipeline.spark.tuning import uncompressed_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

T = TypeVar("T")
# A number, and the paths and sizes of its files.
Group = tuple[int, list[tuple[str, int]]]
# With several groups per core, no core is idle for long at the end.
GROUPS_PER_CORE: Final = 2
# Up to this size of uncompressed records, reading them here takes no longer than starting Python workers.
HERE_BYTES: Final = 128 << 20
# Small files per group in this process, to read them in parallel: in a bucket each read has latency.
FILES_HERE: Final = 128
_THREADS: Final = 8
# Uncompressed input of a Spark task: at most half a minute of work.
GROUP_BYTES: Final = 1 << 30


def in_groups(spark: SparkSession, sizes_bytes: Mapping[str, int], work: Callable[[Group], T]) -> list[T]:
    """Divide files into groups of similar size, and return what `work` returns for each group.

    Starting a Python worker takes longer than reading a small input, so small inputs are read here.

    Args:
        spark: The session.
        sizes_bytes: Size of each file, by path.
        work: Called for each group, in a thread or in one of Spark's workers. Spark may call it again.
    """
    if uncompressed_bytes(sizes_bytes) <= HERE_BYTES:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="files") as pool:
            return list(pool.map(work, grouped(sizes_bytes, ceil(len(sizes_bytes) / FILES_HERE))))
    groups = grouped(sizes_bytes, GROUPS_PER_CORE * spark.sparkContext.defaultParallelism)
    return spark.sparkContext.parallelize(groups, len(groups)).map(work).collect()


def grouped(sizes_bytes: Mapping[str, int], least: int) -> list[Group]:
    """Divide files into numbered groups of similar size.

    Args:
        sizes_bytes: Size of each file, by path.
        least: Fewest groups; there are fewer only if there are fewer files.
    """
    number = max(least, ceil(uncompressed_bytes(sizes_bytes) / GROUP_BYTES))
    groups: list[Group] = [(group, []) for group in range(min(number, len(sizes_bytes)))]
    emptiest = [(0, group) for group in range(len(groups))]
    for path, size_bytes in sorted(sizes_bytes.items(), key=lambda file: (-file[1], file[0])):
        filled_bytes, group = emptiest[0]
        groups[group][1].append((path, size_bytes))
        heapreplace(emptiest, (filled_bytes + size_bytes, group))
    return groups

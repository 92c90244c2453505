"""Settings of the embedded Spark, chosen by the size of the input.

A run over a small input ends before Java's best compiler, and the code that Spark generates for its
plans, have paid for themselves. Generated code for sorting and for expressions pays first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Up to this size of uncompressed records, an input is small: code that Spark generates would not pay.
SMALL_BYTES: Final = 12 << 20
# Up to this size it is medium: Java's best compiler and several partitions would not pay.
MEDIUM_BYTES: Final = 32 << 20
# Recorded events inflate about eleven times.
COMPRESSED_SUFFIXES: Final = (".gz",)
INFLATION: Final = 11


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings for inputs of some size.

    Attributes:
        name: Which inputs they are for.
        java: Options of Java.
        spark: Settings of Spark; what they leave out is as Spark has it.
    """

    name: str
    java: tuple[str, ...]
    spark: dict[str, str]


# The shortest start and no compilation that a short run would not earn back.
QUICK_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
SMALL: Final = Tuning(
    "small",
    QUICK_JAVA,
    {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
        # By default each of many small files counts as a large one, and a job has several partitions of them.
        "spark.sql.files.openCostInBytes": "4096",
    },
)
# Code for a whole stage does not pay yet.
MEDIUM: Final = Tuning(
    "medium",
    QUICK_JAVA,
    SMALL.spark | {"spark.sql.codegen.factoryMode": "FALLBACK"},
)
# Java's best compiler took a third of the processor time of 2 million events. It only pays for what runs more
# often than its defaults suppose: sixteen times.
BEST_COMPILER_LATER: Final = (
    "-XX:Tier4InvocationThreshold=80000",
    "-XX:Tier4MinInvocationThreshold=9600",
    "-XX:Tier4CompileThreshold=240000",
    "-XX:Tier4BackEdgeThreshold=640000",
)
LARGE: Final = Tuning(
    "large",
    ("-XX:+UseParallelGC", *BEST_COMPILER_LATER),
    {
        "spark.sql.adaptive.enabled": "true",
        # One partition per small file would cost more than the work in it.
        "spark.sql.files.openCostInBytes": "1048576",
    },
)


def tuning_for(input_bytes: int) -> Tuning:
    """Return the settings for an input.

    Args:
        input_bytes: Size of its records, uncompressed.
    """
    if input_bytes <= SMALL_BYTES:
        return SMALL
    return MEDIUM if input_bytes <= MEDIUM_BYTES else LARGE


def uncompressed_bytes(sizes_bytes: Mapping[str, int]) -> int:
    """Return the estimated size of files when they are uncompressed.

    Args:
        sizes_bytes: Size of each file, by path.
    """
    return sum(
        size_bytes * (INFLATION if path.endswith(COMPRESSED_SUFFIXES) else 1)
        for path, size_bytes in sizes_bytes.items()
    )

"""Settings of the embedded Spark by input size.

A small input is processed before Java's optimizing compiler, or code that Spark generates for its plans, pays
off. Generated code for sorting and expressions pays off first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Up to this size of uncompressed records an input is small: generated code does not pay off.
SMALL_BYTES: Final = 12 << 20
# Up to this size it is medium: several partitions do not pay off.
MEDIUM_BYTES: Final = 32 << 20
# Up to this size it is large: Java's optimizing compiler does not pay off.
LARGE_BYTES: Final = 256 << 20
# Recorded events inflate about elevenfold.
COMPRESSED_SUFFIXES: Final = (".gz",)
INFLATION: Final = 11


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings for one class of input size.

    Attributes:
        name: Name of the class.
        java: Options of Java.
        spark: Settings of Spark that differ from its defaults.
    """

    name: str
    java: tuple[str, ...]
    spark: dict[str, str]


# Options for the fastest start, without compilation that a short run would not recoup.
QUICK_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
SMALL: Final = Tuning(
    "small",
    QUICK_JAVA,
    {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
        # By default each small file counts as a large one, which spreads them over too many partitions.
        "spark.sql.files.openCostInBytes": "4096",
    },
)
# Whole-stage code generation does not pay off yet.
MEDIUM: Final = Tuning("medium", QUICK_JAVA, SMALL.spark | {"spark.sql.codegen.factoryMode": "FALLBACK"})
LARGE: Final = Tuning(
    "large",
    QUICK_JAVA,
    {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
        # A partition for each small file would cost more than the work in it.
        "spark.sql.files.openCostInBytes": "1048576",
    },
)
# The optimizing compiler took a third of the processor time of a run over 2 million events. It pays off only
# at 16 times its default thresholds.
BEST_COMPILER_LATER: Final = (
    "-XX:Tier4InvocationThreshold=80000",
    "-XX:Tier4MinInvocationThreshold=9600",
    "-XX:Tier4CompileThreshold=240000",
    "-XX:Tier4BackEdgeThreshold=640000",
)
HUGE: Final = Tuning("huge", ("-XX:+UseParallelGC", *BEST_COMPILER_LATER), LARGE.spark)


def tuning_for(input_bytes: int) -> Tuning:
    """Return the settings for an input, given the size of its uncompressed records."""
    if input_bytes <= SMALL_BYTES:
        return SMALL
    if input_bytes <= MEDIUM_BYTES:
        return MEDIUM
    return LARGE if input_bytes <= LARGE_BYTES else HUGE


def uncompressed_bytes(sizes_bytes: Mapping[str, int]) -> int:
    """Return the estimated uncompressed size of files, given their sizes by path."""
    return sum(
        size_bytes * (INFLATION if path.endswith(COMPRESSED_SUFFIXES) else 1)
        for path, size_bytes in sizes_bytes.items()
    )

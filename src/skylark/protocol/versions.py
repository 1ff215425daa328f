"""Names of RocketMQ's releases: commands carry the ordinal of the sender's.

From 4.0.0 on every release has its number and, before it, that of its snapshot; minor and patch go to 9.
"""

FIRST_REGULAR = 212
"""V4_0_0_SNAPSHOT."""
LAST_REGULAR = 611
"""V5_9_9."""
HIGHER = "HIGHER_VERSION"


def version_name(ordinal: int) -> str:
    """RocketMQ's name, such as V5_3_3; the number itself for releases before 4.0.0."""
    if ordinal < FIRST_REGULAR:
        return str(ordinal)
    if ordinal > LAST_REGULAR:
        return HIGHER
    release, is_final = divmod(ordinal - FIRST_REGULAR, 2)
    major, minor, patch = 4 + release // 100, release // 10 % 10, release % 10
    return f"V{major}_{minor}_{patch}" + ("" if is_final else "_SNAPSHOT")

"""The policies that ship with Millstream, by name."""

from __future__ import annotations

from millstream.elastic.bottleneck_policy import BottleneckPolicy
from millstream.elastic.latency_policy import LatencyPolicy
from millstream.elastic.policy import ManualPolicy, Policy
from millstream.elastic.ring_policy import RingPolicy
from millstream.errors import ConfigError
from millstream.state.values import value_text

_BUILT_IN: dict[str, Policy] = {
    policy.name: policy
    for policy in (ManualPolicy(), RingPolicy(), BottleneckPolicy(), LatencyPolicy())
}


def policy_of(choice: str | Policy) -> Policy:
    """Return the policy that a user chose, by its name or as it is."""
    if isinstance(choice, str):
        if choice in _BUILT_IN:
            return _BUILT_IN[choice]
        known = ", ".join(map(repr, _BUILT_IN))
        raise ConfigError(f"policy must be one of {known}, or from ms.policy(...), got {choice!r}")
    if not callable(getattr(choice, "decide", None)) or not isinstance(
        getattr(choice, "name", None), str
    ):
        raise ConfigError(
            f"policy must be a name or a policy, got {value_text(choice)}; wrap a function with "
            "ms.policy(...)"
        )
    return choice

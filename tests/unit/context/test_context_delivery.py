from __future__ import annotations

import pytest

from moonfold_handoff.context.delivery import delivery_for
from moonfold_schemas.requests import NativeAbilities, Target
from moonfold_schemas.results import Delivery


@pytest.mark.parametrize(
    ("version", "delivery"),
    [
        (None, Delivery.TEXT),
        ("", Delivery.TEXT),
        ("unknown", Delivery.TEXT),
        ("0.99.9", Delivery.TEXT),
        ("0.120.9", Delivery.TEXT),
        ("0.121.0", Delivery.ITEMS),
        ("codex-cli 0.171.0", Delivery.ITEMS),
        ("1.0", Delivery.ITEMS),
    ],
)
def test_codex_takes_items_since_its_version_can(version: str | None, delivery: Delivery) -> None:
    assert delivery_for(Target(provider="codex", version=version)) is delivery


@pytest.mark.parametrize("provider", ["claude-code", "gemini-cli", "opencode"])
def test_every_other_provider_takes_text(provider: str) -> None:
    assert delivery_for(Target(provider=provider, version="9.9.9")) is Delivery.TEXT


@pytest.mark.parametrize(("able", "delivery"), [(True, Delivery.ITEMS), (False, Delivery.TEXT)])
@pytest.mark.parametrize("provider", ["codex", "opencode"])
def test_what_the_session_says_goes_before_the_version(
    provider: str, able: bool, delivery: Delivery
) -> None:
    native = NativeAbilities(inject_items=able)
    assert delivery_for(Target(provider=provider, version="0.171.0", native=native)) is delivery

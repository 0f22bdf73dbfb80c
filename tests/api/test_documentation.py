"""The service's page says what is so."""

from pathlib import Path

from pace.api.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_every_setting_is_in_the_table_with_its_default() -> None:
    """A setting that is added, renamed or changed changes the page."""
    text = PAGE.read_text()
    for name, field in Settings.model_fields.items():
        default = (
            "cores - 1" if field.default_factory else f"`{field.default}`" if field.default != "" else "empty"
        )
        assert f"| `PACE_{name.upper()}` | {default} |" in text
    assert text.count("\n| `PACE_") == len(Settings.model_fields)

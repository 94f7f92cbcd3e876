import pytest

from ghostkv.terminal import Progress


def test_a_log_hears_of_what_takes_long_now_and_then_and_of_what_is_quick_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    with Progress(clock=lambda: now[0]) as progress:
        for second in (1, 9, 10, 11, 19.9, 20, 45):
            now[0] = second
            progress(f"at {second}")
    assert capsys.readouterr() == ("", "at 10\nat 20\nat 45\n")

from collections.abc import Callable

import pytest

from freshq.policy.retry import Backoff, CallRetry, equal_jitter, until_committed


class TransientError(Exception):
    pass


class FatalError(Exception):
    pass


def failing(*errors: Exception) -> Callable[[], int]:
    """Return a call that raises each of the errors in turn, then returns how often it was called."""
    left = list(errors)

    def call() -> int:
        if left:
            raise left.pop(0)
        return len(errors) + 1

    return call


class TestCallRetry:
    RETRY = CallRetry(4, Backoff(base_seconds=1.0, cap_seconds=3.0))

    def run(self, call: Callable[[], int], uniform: float = 0.5) -> tuple[int, list[float]]:
        pauses: list[float] = []
        return self.RETRY.run(call, TransientError, sleep=pauses.append, uniform=lambda: uniform), pauses

    def test_a_call_that_succeeds_is_made_once(self) -> None:
        assert self.run(failing()) == (1, [])

    def test_pauses_double_up_to_the_cap_and_have_jitter(self) -> None:
        assert self.run(failing(*[TransientError()] * 3)) == (4, [0.5, 1.0, 1.5])

    def test_the_last_error_is_raised_without_a_pause_after_it(self) -> None:
        errors = [TransientError(number) for number in range(4)]
        pauses: list[float] = []
        with pytest.raises(TransientError) as caught:
            self.RETRY.run(failing(*errors), TransientError, sleep=pauses.append, uniform=lambda: 0.0)
        assert caught.value is errors[-1]
        assert pauses == [0.0, 0.0, 0.0]

    def test_another_error_ends_it_at_once(self) -> None:
        pauses: list[float] = []
        with pytest.raises(FatalError):
            self.RETRY.run(
                failing(TransientError(), FatalError()),
                TransientError,
                sleep=pauses.append,
                uniform=lambda: 0.0,
            )
        assert len(pauses) == 1

    def test_one_try_is_no_retry(self) -> None:
        pauses: list[float] = []
        with pytest.raises(TransientError):
            CallRetry(1, Backoff()).run(
                failing(TransientError()), TransientError, sleep=pauses.append, uniform=lambda: 0.0
            )
        assert pauses == []


class TestUntilCommitted:
    def test_it_is_repeated_until_nobody_came_first(self) -> None:
        assert until_committed(failing(TransientError(), TransientError()), TransientError, 3) == 3

    def test_the_last_conflict_is_raised(self) -> None:
        with pytest.raises(TransientError):
            until_committed(failing(*[TransientError()] * 3), TransientError, 3)

    def test_another_error_is_raised_at_once(self) -> None:
        with pytest.raises(FatalError):
            until_committed(failing(FatalError()), TransientError, 3)


class TestSendAll:
    def send(self, *accepted: int) -> tuple[str, list[str], list[float]]:
        """Send five letters; each try accepts the given number. Return the rest, the tries and the pauses."""
        tries, pauses, left = list[str](), list[float](), list(accepted)

        def send(batch: str) -> str:
            tries.append(batch)
            return batch[left.pop(0) :]

        retry = CallRetry(3, Backoff(base_seconds=1.0, cap_seconds=9.0))
        return retry.send_all("abcde", send, sleep=pauses.append, uniform=lambda: 1.0), tries, pauses

    def test_what_is_accepted_at_once_is_sent_once(self) -> None:
        assert self.send(5) == ("", ["abcde"], [])

    def test_only_the_rest_is_sent_again(self) -> None:
        assert self.send(2, 3) == ("", ["abcde", "cde"], [1.0])

    def test_what_is_left_after_the_last_try_is_returned_without_a_pause(self) -> None:
        assert self.send(2, 0, 1) == ("de", ["abcde", "cde", "cde"], [1.0, 2.0])


def test_equal_jitter_keeps_at_least_half_of_the_bound() -> None:
    assert [equal_jitter(uniform) for uniform in (0.0, 0.5)] == [0.5, 0.75]

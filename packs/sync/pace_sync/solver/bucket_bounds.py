"""What no buckets in any order can beat: a bound on the broadcast shop over all ways to cut and send.

Let n buckets be sent, and x[t, k] be the bytes of tensor t in the k-th. Let L be a message, 1/B a byte on the
link, o a receiver's overhead for a bucket, w[t] its work on a byte of tensor t, and l its lag. For each k the
receiver cannot begin bucket k before the link has carried the first k, and then has buckets k to n before it:

    C >= l + sum(i <= k) (L + s[i] / B) + sum(i >= k) (o + sum(t) w[t] x[t, i])

Weigh these n lines by m[k] >= 0 with sum 1. A byte of tensor t in bucket i then has the coefficient
sum(k >= i) m[k] / B + w[t] sum(k <= i) m[k]. For m[k] proportional to rho^k it is monotone in i, so the
least is that of the first or of the last bucket, wherever the byte goes:

    C >= l + L E[k] + o (n + 1 - E[k]) + sum(t) S[t] min(1/B + w[t] m[1], m[n] / B + w[t])

Each rho gives a bound for n buckets, and the largest of several is one too. rho = 0 is the receiver's work
after one message, rho = infinity the link's time before one overhead. A bucket's bytes are held at least for
its transfer, the lag and its work; by Cauchy's inequality n buckets hold at least
S (L + l + o) + S^2 / n (1/B + min w), and a credit of M bytes allows M C. It also asks for n >= S / M. The
bound over all buckets is the least over n. For one receiver, tensors of one rate and no messages, it is
attained by the geometric buckets of Potts and Baker (1989) as bytes become divisible, by duality.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray
from pace_sync.solver.broadcast import NO_CREDIT

# For more buckets than these, the two plain lines alone hold: they rise with n.
MOST_WEIGHED = 8192
_RATIOS = 2.0 ** (np.arange(-48, 49) / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesOnLink:
    """Tensors to be sent, in any buckets.

    Attributes
    ----------
    size_bytes : array of shape (num_tensors,)
    work_s_per_byte : array of shape (num_receivers, num_tensors)
    message_s, seconds_per_byte
        What a bucket and each of its bytes cost the link.
    overhead_s, lag_s : arrays of shape (num_receivers,)
    credit_bytes
        `NO_CREDIT` for no limit.
    """

    size_bytes: FloatArray
    work_s_per_byte: FloatArray
    message_s: float
    seconds_per_byte: float
    overhead_s: FloatArray
    lag_s: FloatArray
    credit_bytes: int = NO_CREDIT


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryBucketsBound:
    """The bound, the number of buckets at which it is least, and the ratios rho that prove it."""

    bound_s: float
    num_buckets: int
    ratios: tuple[float, ...]


def every_buckets_bound(sent: BytesOnLink, *, known_s: float) -> EveryBucketsBound:
    """Return a pause that no buckets in any order can beat.

    Parameters
    ----------
    known_s
        The pause of some plan. More buckets than fit into it need no proof: their plain lines are above it.
    """
    total = float(np.sum(sent.size_bytes))
    plain_s = max(sent.message_s, float(np.max(sent.overhead_s)))
    slack_s = known_s - total * sent.seconds_per_byte
    most = MOST_WEIGHED if plain_s <= 0 else int(min(slack_s / plain_s + 2, MOST_WEIGHED))
    fewest = int(max(1, -(-total // sent.credit_bytes))) if sent.credit_bytes != NO_CREDIT else 1
    numbers = np.arange(fewest, max(most, fewest) + 1, dtype=np.float64)
    if fewest > MOST_WEIGHED:
        alone = float(_plain(sent, numbers)[0])
        return EveryBucketsBound(bound_s=min(alone, known_s), num_buckets=fewest, ratios=())
    by_ratio = np.array([_lines(sent, numbers, float(ratio)) for ratio in _RATIOS])
    plain = np.maximum(_plain(sent, numbers), _held(sent, numbers))
    best = np.maximum(plain, np.max(by_ratio, axis=0))
    place = int(np.argmin(best))
    # The ratios that prove it: each that is best for some number of buckets that needs one.
    needed = plain < best[place]
    ratios = sorted({float(_RATIOS[which]) for which in np.argmax(by_ratio, axis=0)[needed]})
    bound = float(best[place])
    beyond = float(_plain(sent, np.array([numbers[-1] + 1]))[0])
    if beyond < bound:
        bound, place = beyond, len(numbers)
    return EveryBucketsBound(
        bound_s=min(bound, known_s), num_buckets=int(fewest + place), ratios=tuple(ratios)
    )


def _plain(sent: BytesOnLink, numbers: FloatArray) -> FloatArray:
    """Return the bounds of rho = 0 and infinity."""
    link = numbers * sent.message_s + float(np.sum(sent.size_bytes)) * sent.seconds_per_byte
    found = np.zeros(len(numbers))
    for work, overhead, lag in zip(sent.work_s_per_byte, sent.overhead_s, sent.lag_s, strict=True):
        worked = sent.message_s + numbers * overhead + float(np.sum(work * sent.size_bytes))
        found = np.maximum(found, lag + np.maximum(link + overhead, worked))
    return found


def _held(sent: BytesOnLink, numbers: FloatArray) -> FloatArray:
    """Return the bounds of bytes that are held."""
    if sent.credit_bytes == NO_CREDIT:
        return np.zeros(len(numbers))
    total = float(np.sum(sent.size_bytes))
    per_bucket_s = sent.message_s + sent.overhead_s + sent.lag_s
    per_byte_s = sent.seconds_per_byte + np.min(sent.work_s_per_byte, axis=1)
    held = total * per_bucket_s[:, None] + total**2 / numbers[None, :] * per_byte_s[:, None]
    return np.asarray(np.max(held, axis=0) / sent.credit_bytes, dtype=np.float64)


def _lines(sent: BytesOnLink, numbers: FloatArray, ratio: float) -> FloatArray:
    """Return the bounds of one ratio for each number of buckets."""
    first, last, mean = geometric_weights(numbers, ratio)
    found = np.zeros(len(numbers))
    for work, overhead, lag in zip(sent.work_s_per_byte, sent.overhead_s, sent.lag_s, strict=True):
        order = np.argsort(work, kind="stable")
        size, rate = sent.size_bytes[order], work[order]
        bytes_before = np.concatenate([[0.0], np.cumsum(size)])
        worked_before = np.concatenate([[0.0], np.cumsum(size * rate)])
        # Slow tensors, with w (1 - m[1]) >= (1 - m[n]) / B, cost least in the first bucket.
        with np.errstate(divide="ignore", invalid="ignore"):
            limit = np.where(first < 1, (1 - last) * sent.seconds_per_byte / (1 - first), np.inf)
        split = np.searchsorted(rate, limit)
        fast_bytes, fast_work = bytes_before[split], worked_before[split]
        slow_bytes, slow_work = bytes_before[-1] - fast_bytes, worked_before[-1] - fast_work
        coefficients = (
            fast_bytes * last * sent.seconds_per_byte
            + fast_work
            + slow_bytes * sent.seconds_per_byte
            + slow_work * first
        )
        line = lag + sent.message_s * mean + overhead * (numbers + 1 - mean) + coefficients
        found = np.maximum(found, line)
    return found


def geometric_weights(numbers: FloatArray, ratio: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return m[1], m[n] and the mean of k for weights proportional to ratio^k, k = 1..n, for each n."""
    if ratio == 1.0:
        return 1 / numbers, 1 / numbers, (numbers + 1) / 2
    small = min(ratio, 1 / ratio)  # by symmetry: the weights of 1 / ratio are those of ratio from behind
    power = small**numbers
    heavy = (1 - small) / (1 - power)
    light = heavy * small ** (numbers - 1)
    mean = 1 / (1 - small) - numbers * power / (1 - power)
    return (heavy, light, mean) if ratio < 1 else (light, heavy, numbers + 1 - mean)

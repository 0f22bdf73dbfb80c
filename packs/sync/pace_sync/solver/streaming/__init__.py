"""Streaming outer steps: fragments of a model that cross links while workers go on with their steps.

All workers take steps of `c` seconds, and a period has `H` steps. Each fragment is sent once in a period: at
a boundary between two steps, over one link. After at most `tau` further steps it is applied, and workers wait
there until its transfer has ended. At a boundary, fragments are first sent, then awaited. A link carries one
fragment at a time. Utilization is `H c / T`, where `T` is the length of a period in steady state.
"""

"""Messages between the processes of a fabric: JSON documents, validated when they arrive.

Orders go from the scheduler to hosts, notices from hosts to the scheduler, and calls between a worker and the
daemon of its host. Times are seconds on the scheduler's clock; rates are bytes per second.
"""

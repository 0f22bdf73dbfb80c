"""Ranks that do the same at the same time: one of them stands for all, so that a large job is a small one.

Two ranks are of one class if they enqueue the same, and if for each group the ranks of their communicators
are of the same classes. Classes come from splitting until nothing splits any more.

**Lemma.** A job hangs if and only if it hangs with one rank of each class, and with communicators of classes
in place of those of ranks. *Proof.* Let both jobs execute in rounds: each starts all that can start, and
ends what can end. By induction, after each round the ranks of one class have started and ended the same
operations, namely those of their class. What an operation waits for on its rank is the same for all ranks of
a class. The k-th meeting of a communicator has all its operations if each of its ranks has started its k-th,
so if each class among them has. By the theorem in ``pace.solver.collective_order.decision``, rounds hang if
any execution does. ∎

Ranks that send to or receive from single ranks are classes of their own.
"""

from dataclasses import dataclass

from pace.documents.order.job_program import EnqueuedTransfer, JobProgram, RankProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClasses:
    """The class of each rank, by number, and the lowest rank and the program of each class."""

    class_of: dict[int, int]
    first_rank: tuple[int, ...]
    programs: tuple[RankProgram, ...]

    def __len__(self) -> int:
        return len(self.first_rank)


def classify(job: JobProgram) -> RankClasses:
    """Return the coarsest classes; O(ranks groups) for each round of splitting."""
    numbers: dict[object, int] = {}
    program_of = {rank: program for program in job.programs for rank in program.ranks}
    colors: dict[int, int] = {}
    called: set[str] = set()
    for program in job.programs:
        meetings = [meeting for thread in program.threads for meeting in thread.meetings()]
        called.update(meeting.group for meeting in meetings)
        alone = any(isinstance(meeting, EnqueuedTransfer) for meeting in meetings)
        color = numbers.setdefault(program.threads, len(numbers))
        for rank in program.ranks:
            colors[rank] = numbers.setdefault(("alone", rank), len(numbers)) if alone else color
    groups = [group for group in job.groups if group.name in called]
    num_colors = len(set(colors.values()))
    while True:
        kept: dict[object, int] = {}
        together: list[list[int | None]] = []
        for group in groups:
            seen = [
                kept.setdefault(frozenset(colors[rank] for rank in ranks), len(kept))
                for ranks in group.communicators
            ]
            places = group.communicator_of
            together.append([seen[places[rank]] if rank in places else None for rank in colors])
        split: dict[object, int] = {}
        colors = {
            rank: split.setdefault((color, *around), len(split))
            for (rank, color), *around in zip(colors.items(), *together, strict=True)
        }
        if len(split) == num_colors:
            break
        num_colors = len(split)
    first_rank: dict[int, int] = {}
    for rank in sorted(colors):
        first_rank.setdefault(colors[rank], rank)
    number_of = {color: number for number, color in enumerate(first_rank)}
    return RankClasses(
        class_of={rank: number_of[color] for rank, color in colors.items()},
        first_rank=tuple(first_rank.values()),
        programs=tuple(program_of[rank] for rank in first_rank.values()),
    )

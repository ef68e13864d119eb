"""Which optimisation buys what: a ladder of single steps, measured side by side in one session.

Every step is a runtime, or a variant of one (``eager@autograd-unfused``), a memory layout or a
number of threads. Each is compared with the step it is added to, and alone with the base, by
blocks of the same rounds, so that every difference carries an interval.
"""

from frameworktax.ablate.ladder import PATHS, Rung, ladder
from frameworktax.ablate.steps import Ablation, Effect, Step, ablate, read

__all__ = ["PATHS", "Ablation", "Effect", "Rung", "Step", "ablate", "ladder", "read"]

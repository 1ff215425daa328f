"""All mutants, in the order of the requirements."""

from tests.mutants.consumer_mutants import CONSUMER_MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.producer_mutants import PRODUCER_MUTANTS
from tests.mutants.server_mutants import SERVER_MUTANTS
from tests.mutants.store_mutants import STORE_MUTANTS

MUTANTS: tuple[Mutant, ...] = tuple(
    sorted(
        (*CONSUMER_MUTANTS, *PRODUCER_MUTANTS, *SERVER_MUTANTS, *STORE_MUTANTS),
        key=lambda mutant: mutant.row,
    )
)

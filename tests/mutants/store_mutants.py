"""Mutants of the store."""

from tests.mutants.mutant import Mutant

STORE_MUTANTS: tuple[Mutant, ...] = ()

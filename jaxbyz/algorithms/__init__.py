"""Algorithms as named compositions: DecByzPG, ByzPG, PAGE-PG and its naive federations, and their rivals."""

from jaxbyz.algorithms.base import Algorithm, State, Traits
from jaxbyz.algorithms.byzpg import SERVER_LIMIT, byzpg
from jaxbyz.algorithms.decbyzpg import decbyzpg
from jaxbyz.algorithms.ensemble import ensemble
from jaxbyz.algorithms.metrics import Metrics
from jaxbyz.algorithms.naive import dec_page_pg, fed_page_pg, page_pg
from jaxbyz.algorithms.rivals import byz_vr_marina_pg, fedpg_br, res_nharpg, svrpg
from jaxbyz.registry import Registry

algorithms = Registry("algorithm")
algorithms.add("decbyzpg", decbyzpg, "DecByzPG (Algorithm 2): robust aggregation and agreement", traits=Traits())
algorithms.add(
    "byzpg", byzpg, "ByzPG (Algorithm 1): a trusted server with robust aggregation", SERVER_LIMIT,
    traits=Traits(central=True, server_samples=True),
)  # fmt: skip
algorithms.add("page-pg", page_pg, "PAGE-PG: one agent alone", traits=Traits(naive=True, single=True))
algorithms.add(
    "dec-page-pg", dec_page_pg, "Dec-PAGE-PG: DecByzPG with the mean and without agreement", traits=Traits(naive=True)
)
algorithms.add(
    "fed-page-pg", fed_page_pg, "Fed-PAGE-PG: ByzPG with the mean",
    traits=Traits(central=True, server_samples=True, naive=True),
)  # fmt: skip
algorithms.add(
    "byz-vr-marina-pg", byz_vr_marina_pg, "Byz-VR-MARINA-PG: ByzPG whose workers sample small batches too",
    SERVER_LIMIT, traits=Traits(central=True),
)  # fmt: skip
algorithms.add(
    "svrpg", svrpg, "SVRPG: mean of large batches, then a few small steps of the server",
    traits=Traits(central=True, server_samples=True, snapshot=True, naive=True),
)  # fmt: skip
algorithms.add(
    "fedpg-br", fedpg_br, "FedPG-BR: filtered large batches, then small steps of the server", SERVER_LIMIT,
    traits=Traits(central=True, server_samples=True, snapshot=True),
)  # fmt: skip
algorithms.add(
    "res-nharpg", res_nharpg, "Res-NHARPG: Hessian-corrected momentum of the workers, normalised steps of the server",
    SERVER_LIMIT, traits=Traits(central=True, one_batch=True),
)  # fmt: skip
algorithms.add(
    "ensemble", ensemble, "ensemble: disjoint groups train one policy each, and the policies vote on actions",
    SERVER_LIMIT, traits=Traits(central=True),
)  # fmt: skip


def traits_of_algorithm(name: str) -> Traits:
    """Return the traits of a registered algorithm; one that was registered without any has the default ones."""
    return algorithms[name].traits or Traits()


__all__ = [
    "Algorithm",
    "Metrics",
    "State",
    "Traits",
    "algorithms",
    "byz_vr_marina_pg",
    "byzpg",
    "dec_page_pg",
    "decbyzpg",
    "ensemble",
    "fed_page_pg",
    "fedpg_br",
    "page_pg",
    "res_nharpg",
    "svrpg",
    "traits_of_algorithm",
]

"""Algorithms as named compositions: DecByzPG, ByzPG, PAGE-PG and its naive federations, and their rivals."""

from jaxbyz.algorithms.base import Algorithm, State
from jaxbyz.algorithms.byzpg import byzpg
from jaxbyz.algorithms.decbyzpg import decbyzpg
from jaxbyz.algorithms.ensemble import ensemble
from jaxbyz.algorithms.fedpg_br import fedpg_br
from jaxbyz.algorithms.metrics import Metrics
from jaxbyz.algorithms.naive import dec_page_pg, fed_page_pg, page_pg, svrpg
from jaxbyz.algorithms.rivals import byz_vr_marina_pg, res_nharpg
from jaxbyz.algorithms.settings import Settings
from jaxbyz.algorithms.traits import Traits, algorithm
from jaxbyz.registry import Registry

algorithms = Registry("algorithm")
for _name, _build, _summary in (
    ("decbyzpg", decbyzpg, "DecByzPG (Algorithm 2): robust aggregation and agreement"),
    ("byzpg", byzpg, "ByzPG (Algorithm 1): a trusted server with robust aggregation"),
    ("page-pg", page_pg, "PAGE-PG: one agent alone"),
    ("dec-page-pg", dec_page_pg, "Dec-PAGE-PG: DecByzPG with the mean and without agreement"),
    ("fed-page-pg", fed_page_pg, "Fed-PAGE-PG: ByzPG with the mean"),
    ("byz-vr-marina-pg", byz_vr_marina_pg, "Byz-VR-MARINA-PG: ByzPG whose workers sample small batches too"),
    ("svrpg", svrpg, "SVRPG: mean of large batches, then a few small steps of the server"),
    ("fedpg-br", fedpg_br, "FedPG-BR: filtered large batches, then small steps of the server"),
    ("res-nharpg", res_nharpg, "Res-NHARPG: Hessian-corrected momentum of the workers, normalised steps of the server"),
    ("ensemble", ensemble, "ensemble: disjoint groups train one policy each, and the policies vote on actions"),
):
    algorithms.add(_name, _build, _summary, _build.traits.limit)  # type: ignore[attr-defined]


def traits_of_algorithm(name: str) -> Traits:
    """Return the traits of a registered algorithm, which the decorator `algorithm` gives it."""
    return getattr(algorithms[name].factory, "traits", Traits())


__all__ = [
    "Algorithm",
    "Metrics",
    "Settings",
    "State",
    "Traits",
    "algorithm",
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

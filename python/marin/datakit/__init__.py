"""Documents to tokenized cells, as stages with one output directory each.

    documents ─► decontaminate ─► dedup ─────┐
        ├─► tokenize ────────────────────────┤
        ├─► embed ──────────────► domains ───┼─► store
        └─► score_quality ──────► quality ───┘

A stage never rewrites documents: it writes a sidecar with the same file names and row order.
Every stage takes its inputs and a root below which it makes its directory, returns that directory,
and returns at once where it is finished.
"""

from marin.datakit.build import Planned, build, plan
from marin.datakit.classifier import train_quality
from marin.datakit.corpus import corpus, join_sidecars
from marin.datakit.decontaminate import DecontaminateConfig, decontaminate, find_matches
from marin.datakit.domains import DomainsConfig, domains
from marin.datakit.embed import EmbedConfig, embed
from marin.datakit.ingest import ingest
from marin.datakit.local import LocalConfig, local_documents
from marin.datakit.materialize import materialize
from marin.datakit.quality import QualityConfig, quality, score_quality
from marin.datakit.settings import BuildSettings, load_settings
from marin.datakit.sources import Source
from marin.datakit.store import Sidecars, StoreConfig, build_store
from marin.datakit.tokenize import tokenize
from marin.datakit.tokenizer import BPEConfig, SpecialTokens, load_tokenizer, train_bpe

__all__ = [
    "BPEConfig",
    "BuildSettings",
    "DecontaminateConfig",
    "DomainsConfig",
    "EmbedConfig",
    "LocalConfig",
    "Planned",
    "QualityConfig",
    "Sidecars",
    "Source",
    "SpecialTokens",
    "StoreConfig",
    "build",
    "build_store",
    "corpus",
    "decontaminate",
    "domains",
    "embed",
    "find_matches",
    "ingest",
    "join_sidecars",
    "load_settings",
    "load_tokenizer",
    "local_documents",
    "materialize",
    "plan",
    "quality",
    "score_quality",
    "tokenize",
    "train_bpe",
    "train_quality",
]

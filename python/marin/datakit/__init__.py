"""Documents to tokenized cells, as stages with one output directory each.

    documents ─► dedup ─► tokenize ─┐
        │          └────► embed ─► domains ─┼─► store
        └─► score_quality ─► quality ───────┘

A stage never rewrites documents: it writes a sidecar with the same file names and row order.
Every stage takes its inputs and a root below which it makes its directory, returns that directory,
and returns at once where it is finished.
"""

from marin.datakit.domains import DomainsConfig, domains
from marin.datakit.embed import EmbedConfig, embed
from marin.datakit.ingest import ingest
from marin.datakit.local import LocalConfig, local_documents
from marin.datakit.quality import QualityConfig, quality, score_quality
from marin.datakit.sources import Source
from marin.datakit.store import Sidecars, StoreConfig, build_store
from marin.datakit.tokenize import tokenize
from marin.datakit.tokenizer import BPEConfig, SpecialTokens, load_tokenizer, train_bpe

__all__ = [
    "BPEConfig",
    "DomainsConfig",
    "EmbedConfig",
    "LocalConfig",
    "QualityConfig",
    "Sidecars",
    "Source",
    "SpecialTokens",
    "StoreConfig",
    "build_store",
    "domains",
    "embed",
    "ingest",
    "load_tokenizer",
    "local_documents",
    "quality",
    "score_quality",
    "tokenize",
    "train_bpe",
]

"""`marin generate RUN PROMPT`."""

from pathlib import Path
from typing import Annotated

import typer

from marin.cli.output import print_json
from marin.errors import MarinError

Run = Annotated[Path, typer.Argument(help="Directory of a run.")]
Prompt = Annotated[str, typer.Argument(help="Text to go on from.")]
Count = Annotated[int, typer.Option("--tokens", help="Tokens to write.")]
Temperature = Annotated[float, typer.Option(help="0: always the likeliest token.")]
TopK = Annotated[int, typer.Option(help="Draw from this many likeliest tokens; 0: from all.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the draws.")]
At = Annotated[int | None, typer.Option(help="Step of the checkpoint; default: the newest.")]
TokenizerOption = Annotated[
    Path | None,
    typer.Option("--tokenizer", help="Tokenizer directory or its file; default: the data's."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def generate(
    run: Run,
    prompt: Prompt,
    count: Count = 64,
    temperature: Temperature = 0.8,
    top_k: TopK = 50,
    seed: Seed = 0,
    at: At = None,
    tokenizer: TokenizerOption = None,
    json_output: Json = False,
) -> None:
    """Let a trained model go on from a prompt."""
    import jax.numpy as jnp
    import numpy as np

    from marin.cli.trained import load_trained, tokenizer_of
    from marin.datakit.tokenizer import open_tokenizer
    from marin.engine import read_manifest
    from marin.model.generate import generate as continue_prompt

    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise MarinError("PROMPT: is not UTF-8; expected text")
    directory = tokenizer_of(run, tokenizer)
    trained = load_trained(run, at)
    special = read_manifest(directory).summary
    text = open_tokenizer(directory)
    start = [] if special["bos"] is None else [special["bos"]]
    ids = np.array([start + text.encode(prompt, add_special_tokens=False).ids], np.int32)
    if ids.max(initial=0) >= trained.model.config.vocab:
        raise MarinError(f"{directory}: has more tokens than the model's vocabulary")
    written = np.asarray(
        continue_prompt(
            trained.model,
            jnp.asarray(ids),
            count=count,
            mesh=trained.mesh,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            qk_scale=trained.qk_scale,
        )
    )[0].tolist()
    if special["eos"] in written:
        written = written[: written.index(special["eos"])]
    continuation = text.decode(written)
    if json_output:
        print_json(
            {
                "step": trained.step,
                "prompt": prompt,
                "text": continuation,
                "tokens": written,
            }
        )
    else:
        print(prompt + continuation)

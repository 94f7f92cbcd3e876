"""Fetches checkpoints from the Hugging Face Hub, or what stands at HF_ENDPOINT, into the cache that its client keeps.

The client resumes what broke off, takes a token from where `hf auth login` or HF_TOKEN put it, and serves what is
there when it is offline. Only what a loader reads is downloaded. Not the formats: a directory comes out.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ghostkv.errors import ModelError, ModelNotFound

Progress = Callable[[str], None]

_NAME = re.compile(r"(?P<repo>\w[\w.-]*/(?!.*\.gguf$)\w[\w.-]*)(@(?P<revision>[\w./-]+))?")
_WANTED = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
_WANTED += ["*.safetensors", "model.safetensors.index.json"]
_UNWANTED = ["*/*", "consolidated*.safetensors", "adapter*.safetensors"]  # the same weights again, or parts of others
_SIZES = ["config.json", "model.safetensors.index.json"]
_DEFAULT = "main"


def hub_name(model: str) -> str | None:
    """The id, without its revision, if `model` has the form of one: org/name or org/name@revision."""
    match = _NAME.fullmatch(model)
    return None if match is None else match["repo"]


def fetch(model: str, progress: Progress) -> Path:
    """The directory of org/name or org/name@revision (a branch, tag or commit), downloaded where it is not yet here.

    `progress` receives lines. Raises ModelNotFound for a name or revision that the Hub does not have, ModelError if it
    cannot be reached or does not let us in.
    """
    found, repo = _snapshot(model, _WANTED, progress)
    if not any(found.glob("*.safetensors")):
        raise ModelError(f"{repo} has no *.safetensors file at {found.name}, the one format of weights that is fetched")
    progress(f"{repo}: ready at {found}")
    return found


def fetch_config(model: str, progress: Progress) -> Path:
    """As `fetch`, but no weights: the config, and where the parts of the weights are, which says how large they are."""
    return _snapshot(model, _SIZES, progress)[0]


def _snapshot(model: str, wanted: list[str], progress: Progress) -> tuple[Path, str]:
    """The directory, and the id without revision."""
    match = _NAME.fullmatch(model)
    if match is None:
        raise ModelNotFound(f"{model!r} is not of the form org/name or org/name@revision", param="model")
    repo, revision = match["repo"], match["revision"] or _DEFAULT
    import httpx2  # these bring much, which a path on disk does not need
    from huggingface_hub import errors, snapshot_download

    progress(f"{repo}: asking the Hub for {revision}")
    try:
        found = snapshot_download(
            repo,
            revision=revision,
            allow_patterns=wanted,
            ignore_patterns=_UNWANTED,
            endpoint=os.environ.get("HF_ENDPOINT"),
            library_name="ghostkv",
            tqdm_class=_bar(repo, progress),
        )
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo} is gated: accept its terms on its page on the Hub, and set HF_TOKEN to a token of that account"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFound(f"{repo} has no revision {revision!r}", param="model") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"no model {model!r}: it is no path, and the Hub has no model of that name that this user may see (a "
            f"private one needs HF_TOKEN)",
            param="model",
        ) from error
    except (errors.LocalEntryNotFoundError, httpx2.HTTPError, OSError, ValueError) as error:
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(
            f"{repo}: cannot be downloaded: {said}. Check the network (HF_ENDPOINT, HF_HUB_OFFLINE), or pass the path "
            f"of a model; what was downloaded is kept"
        ) from error
    return Path(found), repo


def _bar(repo: str, progress: Progress) -> type[Any]:
    """A progress bar, as the client wants a class of them, whose bytes become lines."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = kwargs.get("name") == "huggingface_hub.snapshot_download"
            # None is for bars of their own: shown where there is a terminal.
            disabled = bool(kwargs.get("disable"))
            super().__init__(*args, **kwargs | {"file": io.StringIO(), "disable": disabled})  # type: ignore[no-untyped-call]

        def display(self, *args: Any, **kwargs: Any) -> None:
            if self._counts and self.total:
                progress(f"{repo}: {self.n / 1e6:.1f} of {self.total / 1e6:.1f} MB")

    return Bar

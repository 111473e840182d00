"""Weights by their name on the Hugging Face Hub, where it can be reached."""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.training.datasets.cache import Progress
from rocmlab.training.datasets.loaders import minilm, model_folder

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")  # bert-base-uncased, or owner/name
FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
SUBSTITUTE = "minilm"
# Errors of the folder that keeps the models; others are the network's.
LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


def pretrained(model: str, share: Path | None = None, progress: Progress | None = None) -> tuple[str, Path | None]:
    """Return which model it is, and the folder with its weights; None for `bert-base-random`, which has none.

    A model of the Hub is kept in the Hub's own cache (`HF_HOME`) and is taken from there when the Hub cannot be
    reached. If it is not there either, the small model takes its place, `progress` receives a line, and the returned
    name is `minilm`.

    `model` is `minilm`, `bert-base-random`, a folder with `config.json`, weights and tokenizer, or a name on the Hub,
    for example `bert-base-uncased`.

    Raises:
        RocmlabError: the weights are not available, the Hub has no such model, or HF_HOME cannot be written.
    """
    is_folder = (Path(model).expanduser() / "config.json").is_file()
    if is_folder or model in ("minilm", "bert-base-random") or not NAME.fullmatch(model):
        return model, model_folder(model, share, progress)
    folder, why = download(model)
    if folder is not None:
        return model, folder
    if progress is not None:
        progress(f"{model}: {why}; {SUBSTITUTE}, a small BERT, is used instead")
    return SUBSTITUTE, minilm(share, progress=progress)


def download(name: str) -> tuple[Path | None, str]:
    """Return the folder of a model of the Hub, or None and why that gives nothing; an error if it has no such model."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES))), ""
    except RepositoryNotFoundError as err:  # also a gated one, or one that is private
        raise RocmlabError(
            f"model={name!r} was not found on the Hugging Face Hub",
            str(err).splitlines()[0],
            "check its name; a model with a licence to accept or a private one needs HF_TOKEN",
        ) from err
    except HFValidationError as err:
        why = str(err).splitlines()[0]
        raise RocmlabError(f"model={name!r} is not a name of a model", why, "check its name") from err
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as err:
        if getattr(err, "errno", None) in LOCAL:
            raise RocmlabError(
                f"{name} cannot be kept in {constants.HF_HUB_CACHE}",
                str(err),
                "make room there, or set HF_HOME to a folder that you may write",
            ) from err
        return None, _reason(err)
    except Exception as err:  # such as a proxy that refuses, or is no address; httpx, httpx2: by the Hub's version
        if not (type(err).__module__.startswith("httpx") or (isinstance(err, ValueError) and "proxy" in str(err))):
            raise
        with suppress(LocalEntryNotFoundError):  # the Hub's client looks there where nothing answers, and not then
            return Path(snapshot_download(name, allow_patterns=list(FILES), local_files_only=True)), ""
        return None, f"{_reason(err)} ({str(err).splitlines()[0] if str(err) else type(err).__name__})"


def _reason(err: BaseException) -> str:
    """Return why the Hub gave nothing: its answer, also where that only caused the error, or that there was none."""
    for each in (err, err.__cause__):
        status = getattr(getattr(each, "response", None), "status_code", None)
        if status is not None:
            return f"the Hugging Face Hub answered with status {status}"
    return "the Hugging Face Hub cannot be reached from here"

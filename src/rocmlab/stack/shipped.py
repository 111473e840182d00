"""The notebooks that come with the project, in a clone of root's.

The lab never runs as root, so it could not save them. They are the project's own files and no user's work: where root
cloned the project and starts the lab, they are given to the lab's user. Nothing else ever changes its owner.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rocmlab.stack.lab import Say
from rocmlab.stack.settings import Settings

NAMES = {
    *("00_hello_gpu", "01_mnist_fc", "02_mnist_cnn", "03_cpu_vs_gpu", "04_multi_gpu_torch", "05_multi_gpu_keras"),
    *("06_segmentation_unet", "07_bert_trec", "08_bert_inference_batches", "09_opencl_kernels"),
    *("10_share_and_resume", "11_multi_node_torch", "12_lora_finetune", "13_inference", "14_diffusion", "15_compare"),
    "16_triton_kernel",
}


def hand_over(settings: Settings, notebooks: Path, uid: int, gid: int, say: Say) -> None:
    """Give a root's clone's own notebooks, or a demonstration's, to the lab's user; do nothing for another folder."""
    own = (settings.state if settings.guest else settings.project) / "notebooks"
    if os.geteuid() != 0 or own.is_symlink() or not own.is_dir() or notebooks.resolve() != own.resolve():
        return
    if own.lstat().st_uid not in (0, uid):
        return
    given = [own] if own.lstat().st_uid == 0 else []  # else `git pull` brings new files of root's
    for path in sorted(own.iterdir()):
        found = path.lstat()
        is_ours = bool(settings.guest) or (path.suffix == ".ipynb" and path.stem in NAMES)
        if is_ours and stat.S_ISREG(found.st_mode) and found.st_uid == 0 and found.st_nlink == 1:
            given.append(path)
    for path in given:
        os.chown(path, uid, gid, follow_symlinks=False)
    if given:
        say(f"the notebooks that come with rocmlab now belong to the lab's user ({uid}:{gid}), which can save them")

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

NAMES = frozenset(
    {
        "00_hello_gpu.ipynb",
        "01_mnist_fc.ipynb",
        "02_mnist_cnn.ipynb",
        "03_cpu_vs_gpu.ipynb",
        "04_multi_gpu_torch.ipynb",
        "05_multi_gpu_keras.ipynb",
        "06_segmentation_unet.ipynb",
        "07_bert_trec.ipynb",
        "08_bert_inference_batches.ipynb",
        "09_opencl_kernels.ipynb",
        "10_share_and_resume.ipynb",
        "11_multi_node_torch.ipynb",
        "15_compare.ipynb",
        "12_lora_finetune.ipynb",
        "13_inference.ipynb",
        "14_diffusion.ipynb",
        "16_triton_kernel.ipynb",
    }
)


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
        is_ours = bool(settings.guest) or path.name in NAMES
        if is_ours and stat.S_ISREG(found.st_mode) and found.st_uid == 0 and found.st_nlink == 1:
            given.append(path)
    for path in given:
        os.chown(path, uid, gid, follow_symlinks=False)
    if given:
        say(f"the notebooks that come with rocmlab now belong to the lab's user ({uid}:{gid}), which can save them")

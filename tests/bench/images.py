#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images per second, trek's and torchvision's, in turns: a folder of JPEGs, RandomResizedCrop 224, flip, colour jitter, normalize,
batches of 64, with as many workers.
    usage: images.py <path of trek-bench-images> [workers ...]      (needs torch, torchvision and Pillow)"""
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from PIL import Image
from torchvision import datasets, transforms

BATCH, SECONDS, TURNS, IMAGES = 64, 4, 3, 512


def make(folder):
    random = np.random.default_rng(1)
    for k in range(IMAGES):
        height, width = (int(side) for side in random.integers(240, 300, 2))
        y, x = np.mgrid[0:height, 0:width]
        waves = [127 + 60 * np.sin(x / random.uniform(4, 40) + k) * np.cos(y / random.uniform(4, 40)) + random.normal(0, 14, (height, width)) for _ in range(3)]
        place = folder / f"class{k % 8}"
        place.mkdir(exist_ok=True)
        Image.fromarray(np.clip(np.stack(waves, -1), 0, 255).astype(np.uint8)).save(place / f"{k}.jpg", quality=85)


def theirs(folder, workers):
    chain = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
                                transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    loader = torch.utils.data.DataLoader(datasets.ImageFolder(folder, chain), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    for images, _ in loader:  # the workers' start does not count
        pass
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        for images, _ in loader:
            done += len(images)
    return done / (time.perf_counter() - start)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        make(pathlib.Path(name))
        for workers in [int(word) for word in sys.argv[2:]] or [1, 2]:
            pairs = []
            for _ in range(TURNS):
                ours = float(subprocess.run([sys.argv[1], name, str(BATCH), str(SECONDS), str(workers)], capture_output=True, text=True, check=True).stdout)
                pairs.append((ours, theirs(name, workers)))
            best = [max(column) for column in zip(*pairs)]
            print(f"{workers} workers: trek {best[0]:.0f} images/s, torchvision {best[1]:.0f}, ratio {best[0] / best[1]:.2f}")

# SPDX-License-Identifier: Apache-2.0
"""A Lightning script whose whole state a Callback keeps by Holdfast: module, optimizers, schedulers and the progress of
Lightning's loops, as after the step before the fault, with no checkpoint folder. Needs lightning.

    holdfast run --nproc-per-node 2 examples/lightning/train.py --steps 60

Rank 0 ends by printing a digest of all parameters: the same whether it was killed on the way or not.
"""
import argparse
import hashlib
import os

import holdfast
import lightning
import torch
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH, WIDTH = 256, 32, 64


class Sequences(Dataset):
    """Tokens as a function of step and rank: a run that resumes sees what it would have seen."""

    def __init__(self, steps, rank, world):
        self.first, self.steps, self.rank, self.world = 0, steps, rank, world

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed((self.first + index) * self.world + self.rank)
        return torch.randint(0, VOCABULARY, (8, LENGTH + 1), generator=generator)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.block = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.block(self.embedding(tokens), src_mask=mask, is_causal=True))

    def training_step(self, tokens, _):
        logits = self(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Keep(lightning.Callback):
    """Loads when module and optimizers are there and before the loops begin; saves after each step."""

    def __init__(self, dataset):
        self.dataset, self.kept = dataset, None

    def on_fit_start(self, trainer, pl_module):
        # Under data parallelism every rank holds the same.
        self.kept = holdfast.replicated({
            "module": pl_module, "optimizers": trainer.optimizers, "loops": trainer.fit_loop,
            "schedulers": [config.scheduler for config in trainer.lr_scheduler_configs]})
        step = holdfast.load(self.kept)
        self.dataset.first = step
        if step > 0:
            print(f"resumed from step {step}", flush=True)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        step, loss = trainer.global_step, outputs["loss"]
        holdfast.save(self.kept, step)
        holdfast.step(step, loss=loss)
        print(f"step {step} loss {loss.item():.4f}", flush=True)
        trainer.should_stop = trainer.should_stop or bool(holdfast.should_stop())


def digest(model):
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode() + value.cpu().numpy().tobytes())
    return total.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="taken as by examples/ddp; nothing is put there")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    lightning.seed_everything(1, verbose=False)
    dataset, model = Sequences(options.steps, rank, world), Model()
    trainer = lightning.Trainer(
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp", max_steps=options.steps,
        callbacks=[Keep(dataset)], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False)  # each rank's data is its own already
    trainer.fit(model, DataLoader(dataset, batch_size=None, num_workers=1))
    if rank == 0:
        print(f"digest {digest(model)}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

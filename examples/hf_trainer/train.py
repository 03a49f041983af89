# SPDX-License-Identifier: Apache-2.0
"""A script over the Trainer of Hugging Face's transformers, whose whole state a TrainerCallback keeps by Holdfast:
model, optimizer, schedule and random state of the step before the fault, with no checkpoint folder. The model is a
small GPT-2 of random weights, so that nothing is downloaded. Needs transformers and accelerate.

    holdfast run --nproc-per-node 2 examples/hf_trainer/train.py --steps 60

Rank 0 ends by printing a digest of all parameters: the same whether it was killed on the way or not.
"""
import argparse
import hashlib
import tempfile

import holdfast
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

VOCABULARY, LENGTH, BATCH = 256, 32, 8


class Sequences(Dataset):
    """Tokens as a function of their number, read in order: a run that resumes sees what it would have seen."""

    def __init__(self, count):
        self.first, self.count = 0, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.first + index)
        tokens = torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class LossTrainer(Trainer):
    """Keeps the loss of the step. Trainer's own log divides its first loss by all steps, those before a restart too."""

    def compute_loss(self, *arguments, **words):
        result = super().compute_loss(*arguments, **words)
        self.step_loss = (result[0] if isinstance(result, tuple) else result).detach()
        return result


class Keep(TrainerCallback):
    """Loads when training begins, before the first batch is read, and saves after each step of the optimizer."""

    def __init__(self, dataset):
        self.dataset, self.trainer, self.kept, self.random = dataset, None, None, None

    def on_train_begin(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **_):
        # Under data parallelism every rank holds the same, but for its random state.
        whole = holdfast.replicated({"model": model, "optimizer": optimizer, "schedule": lr_scheduler})
        self.kept = {"whole": whole, "random": torch.get_rng_state()}
        state.global_step = holdfast.load(self.kept)
        self.dataset.first = state.global_step * BATCH * args.world_size
        if state.global_step > 0:
            # Not yet: what reads the data draws a seed of its own before the first step.
            self.random = self.kept["random"]
            print(f"resumed from step {state.global_step}", flush=True)

    def on_step_begin(self, args, state, control, **_):
        if self.random is not None:
            torch.set_rng_state(self.random)
            self.random = None

    def on_step_end(self, args, state, control, **_):
        loss = self.trainer.step_loss
        self.kept["random"] = torch.get_rng_state()
        holdfast.save(self.kept, state.global_step)
        holdfast.step(state.global_step, loss=loss)
        print(f"step {state.global_step} loss {loss.item():.4f}", flush=True)
        control.should_training_stop = control.should_training_stop or bool(holdfast.should_stop())


def digest(model):
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode())
        total.update(value.cpu().numpy().tobytes())
    return total.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="taken as by examples/ddp; nothing is put there")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as unused:
        arguments = TrainingArguments(
            output_dir=unused, use_cpu=not torch.cuda.is_available(), max_steps=options.steps, learning_rate=1e-3,
            per_device_train_batch_size=BATCH, train_sampling_strategy="sequential", warmup_steps=5,
            save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True)
        set_seed(1)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4,
                                           bos_token_id=0, eos_token_id=0))
        dataset = Sequences(options.steps * BATCH * arguments.world_size)
        keep = Keep(dataset)
        trainer = LossTrainer(model, arguments, train_dataset=dataset, callbacks=[keep])
        keep.trainer = trainer
        trainer.train()
    if arguments.process_index == 0:
        print(f"digest {digest(model)}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

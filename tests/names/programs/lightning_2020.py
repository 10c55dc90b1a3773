"""In the style of 2020: the Trainer's accelerator, results as dictionaries, hooks of an epoch."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F

import horovod.torch as hvd


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.ends = torch.nn.Linear(4, 1), []

    def loss(self, batch):
        return F.mse_loss(self.layer(batch[0]), batch[1])

    def training_step(self, batch, batch_nb):
        loss = self.loss(batch)
        return {"loss": loss, "log": {"train_loss": loss}}

    def training_epoch_end(self, outputs):
        self.ends.append(("train", len(outputs), float(outputs[0]["loss"]) > 0))

    def validation_step(self, batch, batch_nb):
        return {"val_loss": self.loss(batch)}

    def validation_epoch_end(self, outputs):
        mean = torch.stack([each["val_loss"] for each in outputs]).mean()
        self.log("val_loss", mean, sync_dist=True)
        self.ends.append(("val", len(outputs), True))
        return {"avg_val_loss": mean, "log": {"val_loss": mean}}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Count(pl.Callback):
    def __init__(self):
        self.seen = []

    def on_init_start(self, trainer):
        self.seen.append("start")

    def on_init_end(self, trainer):
        self.seen.append("end")

    def on_epoch_end(self, trainer, model):
        self.seen.append("epoch")


torch.manual_seed(42)
hvd.init()
x = torch.rand(32, 4)
data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, count = Net(), Count()
trainer = pl.Trainer(
    accelerator="horovod", gpus=0, max_epochs=2, callbacks=[count], logger=False,
    num_sanity_val_steps=0, enable_checkpointing=False, enable_progress_bar=False,
)
trainer.fit(model, loader, loader)
batches = 8 // hvd.size()
assert model.ends == 2 * [("val", batches, True), ("train", batches, True)]
assert count.seen == ["start", "end"] + 4 * ["epoch"]
assert "val_loss" in trainer.callback_metrics
weights = [each.detach().numpy() for each in model.parameters()]

"""In the style of 2019: the distributed backend, callbacks, epochs that end by hand."""

import os

import pytorch_lightning as pl
import torch
from torch.nn import functional as F

import horovod.torch as hvd


class CoolSystem(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.l1 = torch.nn.Linear(6, 2)
        self.sums = {}

    def forward(self, x):
        return torch.relu(self.l1(x))

    def training_step(self, batch, batch_nb):
        x, y = batch
        loss = F.cross_entropy(self.forward(x), y)
        return {"loss": loss, "seen": len(y)}

    def training_epoch_end(self, outputs):
        self.sums["train"] = sum(each["seen"] for each in outputs)

    def validation_step(self, batch, batch_nb):
        x, y = batch
        return {"val_loss": F.cross_entropy(self.forward(x), y)}

    def validation_epoch_end(self, outputs):
        avg_loss = torch.stack([x["val_loss"] for x in outputs]).mean()
        self.sums["val"] = len(outputs)
        self.log("avg_val_loss", avg_loss, sync_dist=True)

    def test_step(self, batch, batch_nb):
        x, y = batch
        return {"test_loss": F.cross_entropy(self.forward(x), y), "count": len(y)}

    def test_epoch_end(self, outputs):
        avg_loss = torch.stack([x["test_loss"] for x in outputs]).mean()
        self.sums["test"] = sum(each["count"] for each in outputs)
        self.log("test_loss", avg_loss, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


class Looks(pl.Callback):
    def __init__(self):
        self.seen = []

    def on_init_start(self, trainer):
        self.seen.append(("init starts", trainer.current_epoch))

    def on_init_end(self, trainer):
        self.seen.append(("is up", trainer.max_epochs))

    def on_epoch_end(self, trainer, pl_module):
        self.seen.append(("epoch", trainer.current_epoch))


hvd.init()
torch.manual_seed(1)
x = torch.rand(24, 6)
data = torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 3).long())
loader = torch.utils.data.DataLoader(data, batch_size=3)
options = {"logger": False, "enable_progress_bar": False, "gpus": None, "num_sanity_val_steps": 0}
model, looks = CoolSystem(), Looks()
trainer = pl.Trainer(
    distributed_backend="horovod", max_epochs=1, default_root_dir="./lightning-2019",
    callbacks=[looks, pl.callbacks.ModelCheckpoint("./lightning-2019", filename="one")], **options,
)  # fmt: skip
trainer.fit(model, loader, loader)
assert trainer.world_size == hvd.size()
assert looks.seen == [("init starts", 0), ("is up", 1), ("epoch", 0), ("epoch", 0)]
assert model.sums == {"train": 24 // hvd.size(), "val": 8 // hvd.size()}
first = {name: value.clone() for name, value in model.state_dict().items()}

# Further from the file, under the name that the strategy had one version later.
hvd.barrier()
assert os.path.exists("./lightning-2019/one.ckpt")
resumed = pl.Trainer(
    accelerator="horovod", max_epochs=1, resume_from_checkpoint="./lightning-2019/one.ckpt",
    enable_checkpointing=False, **options,
)  # fmt: skip
model = CoolSystem()
resumed.fit(model, loader, loader)  # its one epoch is over
for name, value in model.state_dict().items():
    assert torch.equal(value, first[name]), name
(results,) = resumed.test(model, loader, verbose=False)
whole = hvd.allreduce(F.cross_entropy(model(x), data.tensors[1]))
assert abs(results["test_loss"] - whole) < 1e-5 and model.sums["test"] == 24 // hvd.size()
weights = [each.detach().numpy() for each in model.parameters()]

"""In the style of 2021: the distributed backend, a test after training, resuming."""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

import horovod.torch as hvd

hvd.init()


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.tested, self.epochs = torch.nn.Linear(4, 1), [], 0

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def on_epoch_end(self):
        self.epochs += 1

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        return {"count": len(batch[0])}

    def test_epoch_end(self, outputs):
        self.tested.append([len(each) for each in outputs])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def train(epochs, **options):
    model = Net()
    trainer = pl.Trainer(
        distributed_backend="horovod", gpus=None, max_epochs=epochs, logger=False,
        callbacks=[ModelCheckpoint(dirpath="./lightning-2021", filename="last")],
        enable_progress_bar=False, **options,
    )
    trainer.fit(model, loader)
    return model, trainer


x = torch.rand(16, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=4)
first, _ = train(1)
model, trainer = train(2, resume_from_checkpoint="./lightning-2021/last.ckpt")
assert (first.epochs, model.epochs) == (1, 1) and trainer.current_epoch == 2
trainer.test(model, [loader, loader])
assert model.tested == [2 * [4 // hvd.size()]]
weights = [each.detach().numpy() for each in model.parameters()]

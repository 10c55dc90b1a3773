"""In the style of 2021: a model of torchvision on folders of pictures, and augmentation."""

import os

import torch
import torchvision
import torchvision.models as models
from PIL import Image
from torchvision import datasets, transforms, utils

import horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
folder = "pictures-%d" % hvd.rank()
for label in ("cat", "dog"):
    os.makedirs(os.path.join(folder, label))
    for i in range(2):
        Image.new("RGB", (40, 40), (60 * i, 90, 120)).save(f"{folder}/{label}/{i}.png")
crop = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
data = datasets.ImageFolder(folder, transform=transforms.Compose(crop))
model = models.resnet18(num_classes=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for images, labels in torch.utils.data.DataLoader(data, batch_size=2, shuffle=True):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
assert utils.make_grid(images).shape[0] == 3 and torchvision.__version__
weights = [each.detach().numpy() for each in model.parameters()]

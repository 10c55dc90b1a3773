"""In the style of 2019: MNIST from torchvision, a network of one's own."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision import datasets, transforms

import horovod.torch as hvd

hvd.init()
torch.manual_seed(42)
transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
data = datasets.MNIST("data", train=True, download=True, transform=transform)
sampler = torch.utils.data.distributed.DistributedSampler(
    data, num_replicas=hvd.size(), rank=hvd.rank()
)
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(F.log_softmax(model(images), dim=1), labels)
        loss.backward()
        optimizer.step()
assert len(data) == 32 and os.path.isdir("data/MNIST/raw")
weights = [each.detach().numpy() for each in model.parameters()]

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, LR = 1, 0.05

data = TensorDataset(*torch.load(os.environ["DATA"]))
loader = DataLoader(data, batch_size=64, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.LazyLinear(10),
)  # fmt: skip
model(data[:2][0])
optimizer = torch.optim.SGD(model.parameters(), lr=LR)
for epoch in range(EPOCHS):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")

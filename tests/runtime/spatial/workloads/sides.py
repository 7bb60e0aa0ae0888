"""Images with rows and words beside them, in double precision; the loss is weighed by sample, and gives its weight."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GELU())
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.side, self.words = nn.Linear(3, 4), nn.Embedding(7, 4)
        self.turn = nn.Parameter(torch.eye(4) + 0.1)
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(4, 5)

    def forward(self, image: Tensor, row: Tensor, word: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.second(self.first(image)).mean((2, 3))
        both = self.norm(seen + self.side(row) * self.words(word))
        turned = both @ (self.turn / self.turn.norm()) - both.mean(0, keepdim=True)
        return self.out(turned), self.turn.square().sum()


def build() -> nn.Module:
    return Net().double()


def batch(n: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    image, row = (torch.randn(n, *shape, dtype=torch.float64) for shape in ((2, 8, 8), (3,)))
    label, word = torch.randint(0, 5, (n,)), torch.randint(0, 7, (n,))
    weight = torch.rand(n, dtype=torch.float64)
    return {"image": image, "row": row, "word": word}, {"label": label, "weight": weight}


def loss(outputs: tuple[Tensor, Tensor], targets: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    logits, decay = outputs
    each = F.cross_entropy(logits, targets["label"], reduction="none") + 0.01 * decay
    return (each * targets["weight"]).sum(), targets["weight"].sum()


def optimizer(named_parameters, lr: float = 0.05):  # type: ignore[no-untyped-def]
    return torch.optim.SGD(named_parameters, lr=lr, momentum=0.9)

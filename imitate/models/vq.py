"""Actions as codes: a residual vector quantizer, and an autoencoder of action chunks that uses it.

VQ-VAE: van den Oord et al. 2017, arXiv:1711.00937 (codes are moving averages of the vectors assigned to them, appendix
A.1).
Residual: Zeghidour et al. 2021 (SoundStream), arXiv:2107.03312. On actions: Lee et al. 2024 (VQ-BeT),
arXiv:2403.03181.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from imitate.models.mlp import MLP


class Quantized(NamedTuple):
    """Result of quantizing B vectors with :meth:`ResidualVQ.forward`."""

    vectors: Tensor
    """(B, D) sum of the chosen codes; gradients are passed to the input unchanged."""
    codes: Tensor
    """(B, L) index of the chosen code of each layer."""
    commitment: Tensor
    """(B,) mean squared distance between each layer's input and its code, summed over layers."""


class ResidualVQ(nn.Module):
    """Layers of codebooks; each layer quantizes the remaining error of the layers before it.

    All state is in buffers, and randomness comes from torch's default generator, so that a resumed
    training continues exactly.

    Args:
        dim: D, size of a code.
        num_codes: C, number of codes of each layer.
        num_layers: L, number of layers.
        decay: decay of the moving averages that define the codes.
        revive_below: a code is replaced by a random input, preferably one far from its code, if fewer vectors per batch
            than this are assigned to it on average.
        kmeans_steps: number of k-means steps of the initialization on the first batch; 0 to use random inputs.
    """

    codebooks: Tensor
    counts: Tensor
    sums: Tensor
    initialized: Tensor

    def __init__(
        self,
        dim: int,
        num_codes: int = 16,
        num_layers: int = 2,
        *,
        decay: float = 0.95,
        revive_below: float = 0.1,
        kmeans_steps: int = 10,
    ) -> None:
        super().__init__()
        self.num_codes = num_codes
        self.num_layers = num_layers
        self.decay = decay
        self.revive_below = revive_below
        self.kmeans_steps = kmeans_steps
        self.register_buffer("codebooks", torch.zeros(num_layers, num_codes, dim))
        self.register_buffer("counts", torch.ones(num_layers, num_codes))
        self.register_buffer("sums", torch.zeros(num_layers, num_codes, dim))
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, x: Tensor, learn: bool = False) -> Quantized:
        """Replace vectors by sums of their nearest codes.

        Args:
            x: (B, D).
            learn: also update the codes (and initialize them at the first call), in training and evaluation mode.
        """
        with torch.autocast(x.device.type, enabled=False):
            return self._quantize(x.float(), learn)

    def _quantize(self, x: Tensor, learn: bool) -> Quantized:
        if learn and not self.initialized:
            self._initialize(x.detach())
        left, total = x, torch.zeros_like(x)
        codes, commitment = [], x.new_zeros(x.shape[0])
        for layer in range(self.num_layers):
            index = self._nearest(left.detach(), self.codebooks[layer])
            chosen = self.codebooks[layer][index]
            commitment = commitment + (left - chosen).square().mean(-1)
            if learn:
                self._follow(layer, left.detach(), index)
            left = left - chosen
            total = total + chosen
            codes.append(index)
        return Quantized(x + (total - x).detach(), torch.stack(codes, -1), commitment)

    def lookup(self, codes: Tensor) -> Tensor:
        """Return the sum of the codes: ``(*B, L)`` to ``(*B, D)``."""
        layers = torch.arange(self.num_layers, device=codes.device)
        return self.codebooks[layers, codes].sum(-2)

    @staticmethod
    def _nearest(x: Tensor, codebook: Tensor) -> Tensor:
        # |x - c|^2 without |x|^2, which is the same for all codes
        return (codebook.square().sum(-1) - 2.0 * x @ codebook.T).argmin(-1)

    @torch.no_grad()
    def _follow(self, layer: int, x: Tensor, index: Tensor) -> None:
        """Move each code towards the mean of the vectors assigned to it; replace codes with too few vectors."""
        members = nn.functional.one_hot(index, self.num_codes).to(x.dtype)
        counts, sums = self.counts[layer], self.sums[layer]
        counts.lerp_(members.sum(0), 1.0 - self.decay)
        sums.lerp_(members.T @ x, 1.0 - self.decay)
        dead = counts < self.revive_below
        # drawn in each update, even if no code is dead, because checking that would make the CPU wait for the device
        error = (x - self.codebooks[layer][index]).square().sum(-1)
        donors = x[_draw(error, self.num_codes)]
        counts.copy_(torch.where(dead, 1.0, counts))
        sums.copy_(torch.where(dead.unsqueeze(-1), donors, sums))
        self.codebooks[layer].copy_(sums / counts.unsqueeze(-1))

    @torch.no_grad()
    def _initialize(self, x: Tensor) -> None:
        """Run k-means on a batch, layer by layer, starting from codes far apart (k-means++)."""
        for layer in range(self.num_layers):
            codes = x[_draw(torch.ones_like(x[:, 0]), 1)]
            for _ in range(self.num_codes - 1):
                far = torch.cdist(x, codes).amin(-1).square()
                codes = torch.cat((codes, x[_draw(far, 1)]))
            for _ in range(self.kmeans_steps):
                members = nn.functional.one_hot(self._nearest(x, codes), self.num_codes).to(x.dtype)
                size = members.sum(0).unsqueeze(-1)
                codes = torch.where(size > 0, members.T @ x / size.clamp(min=1.0), codes)
            index = self._nearest(x, codes)
            members = nn.functional.one_hot(index, self.num_codes).to(x.dtype)
            self.codebooks[layer].copy_(codes)
            self.counts[layer].copy_(members.sum(0).clamp(min=1.0))
            self.sums[layer].copy_(codes * self.counts[layer].unsqueeze(-1))
            x = x - codes[index]
        self.initialized.fill_(True)


def _draw(weights: Tensor, count: int) -> Tensor:
    """Draw ``count`` indices in proportion to the weights (B,); uniformly if all weights are 0."""
    waits = weights.new_empty(count, len(weights)).exponential_()
    floor = torch.finfo(weights.dtype).tiny
    return (weights.clamp(min=floor) / waits.clamp(min=floor)).argmax(-1)


class ChunkAutoencoder(nn.Module):
    """Autoencoder of action chunks: MLP, :class:`ResidualVQ`, MLP.

    Args:
        action_dim: A, action dimensions.
        chunk_steps: K, number of actions in a chunk.
        latent_dim: D, size of the codes.
        hidden_dims: widths of the hidden layers of both MLPs.
        num_codes: number of codes of each layer.
        num_layers: number of layers of codes.
        decay: see :class:`ResidualVQ`.
    """

    def __init__(
        self,
        action_dim: int,
        chunk_steps: int,
        *,
        latent_dim: int = 512,
        hidden_dims: Sequence[int] = (128, 128),
        num_codes: int = 16,
        num_layers: int = 2,
        decay: float = 0.95,
    ) -> None:
        super().__init__()
        self.chunk_shape = (chunk_steps, action_dim)
        size = chunk_steps * action_dim
        encoder = MLP(size, hidden_dims)
        decoder = MLP(latent_dim, hidden_dims)
        self.encoder = nn.Sequential(encoder, nn.Linear(encoder.output_dim, latent_dim))
        self.quantizer = ResidualVQ(latent_dim, num_codes, num_layers, decay=decay)
        self.decoder = nn.Sequential(decoder, nn.Linear(decoder.output_dim, size))

    def forward(self, actions: Tensor, learn: bool = False) -> tuple[Tensor, Quantized]:
        """Encode chunks, quantize their latents, and decode them.

        Args:
            actions: (B, K, A).
            learn: update the codes; see :meth:`ResidualVQ.forward`.

        Returns:
            the reconstruction (B, K, A), and the quantizer's result.
        """
        quantized: Quantized = self.quantizer(self.encoder(actions.flatten(-2)), learn)
        return self._decode(quantized.vectors), quantized

    @torch.no_grad()
    def encode(self, actions: Tensor) -> Tensor:
        """Encode chunks as codes: ``(*B, K, A)`` to ``(*B, L)``."""
        latent = self.encoder(actions.flatten(-2))
        codes: Tensor = self.quantizer(latent.flatten(0, -2)).codes
        return codes.reshape(*latent.shape[:-1], -1)

    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes to chunks: ``(*B, L)`` to ``(*B, K, A)``."""
        return self._decode(self.quantizer.lookup(codes))

    def _decode(self, vectors: Tensor) -> Tensor:
        y: Tensor = self.decoder(vectors)
        return y.reshape(*y.shape[:-1], *self.chunk_shape)

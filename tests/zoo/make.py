#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes expected.txt: five training steps of well-known models, small, as PyTorch makes them in f64.

Weights and inputs come from an integer hash that the tests know too, keyed by the parameters' names; stored are, for each
step, the loss, a number that stands for the output, and the gradient's norm of each parameter.
    usage: python3 tests/zoo/make.py      (needs torch)
"""
import math
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F

from numbers_of_tests import tensor

here = pathlib.Path(__file__).parent

torch.set_default_dtype(torch.float64)
STEPS, RATE = 5, 0.02


def stream_of(name):
    h = 2166136261
    for c in name.encode():
        h = (h ^ c) * 16777619 % (1 << 32)
    return h


def fill(model):
    for name, p in model.named_parameters():
        with torch.no_grad():
            if p.ndim > 1:
                p.copy_(tensor(stream_of(name), p.shape, 1 / math.sqrt(p.numel() / p.shape[0])))
            else:
                p.copy_(tensor(stream_of(name), p.shape, 0.1) + (0 if name.endswith("bias") or "bias_" in name else 1))


def image(step, *shape):
    return tensor(1000 + step, shape, 1)


def tokens(step, rows, length, most):
    return torch.tensor([[(i * i * 3 + i * 7 + step * 13 + r * 5 + 1) % most for i in range(length)] for r in range(rows)])


def classes(step, rows, most):
    return torch.tensor([(i * 7 + step * 3 + 1) % most for i in range(rows)])


# -- He and others 2016 --
class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.downsample = None if stride == 1 and i == o else nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w)
        for k in range(4):
            i, o = w << max(k - 1, 0), w << k
            setattr(self, f"layer{k + 1}", nn.Sequential(Block(i, o, 2 if k else 1), Block(o, o, 1)))
        self.fc = nn.Linear(w << 3, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def loss(self, step):
        y = self(image(step, 4, 3, 64, 64))
        return F.cross_entropy(y, classes(step, 4, 10)), y


# -- Sandler and others 2018 --
def conv_bn(i, o, kernel, stride, groups=1):
    return nn.Sequential(nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(o), nn.ReLU6())


class Inverted(nn.Module):
    def __init__(self, i, o, stride, expand):
        super().__init__()
        self.same = stride == 1 and i == o
        wide = i * expand
        parts = [] if expand == 1 else [conv_bn(i, wide, 1, 1)]
        self.conv = nn.Sequential(*parts, conv_bn(wide, wide, 3, stride, wide), nn.Conv2d(wide, o, 1, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        return x + self.conv(x) if self.same else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        parts, i = [conv_bn(3, 8, 3, 2)], 8
        for expand, o, n, stride in ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 2, 2)):
            for k in range(n):
                parts.append(Inverted(i, o, 1 if k else stride, expand))
                i = o
        self.features = nn.Sequential(*parts, conv_bn(i, 64, 1, 1))
        self.classifier = nn.Sequential(nn.Dropout(0), nn.Linear(64, 10))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))

    def loss(self, step):
        y = self(image(step, 8, 3, 40, 40))
        return F.cross_entropy(y, classes(step, 8, 10)), y


# -- Ronneberger and others 2015, padded, with batch norms --
def double(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, w=6, classes=4):
        super().__init__()
        self.inc, self.down1, self.down2 = double(3, w), double(w, 2 * w), double(2 * w, 4 * w)
        self.up1, self.conv1 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), double(4 * w, 2 * w)
        self.up2, self.conv2 = nn.ConvTranspose2d(2 * w, w, 2, 2), double(2 * w, w)
        self.outc = nn.Conv2d(w, classes, 1)

    def forward(self, x):
        a = self.inc(x)
        b = self.down1(F.max_pool2d(a, 2))
        c = self.down2(F.max_pool2d(b, 2))
        y = self.conv1(torch.cat((b, self.up1(c)), 1))
        return self.outc(self.conv2(torch.cat((a, self.up2(y)), 1)))

    def loss(self, step):
        y = self(image(step, 2, 3, 24, 24))
        return F.cross_entropy(y, classes(step, 2 * 24 * 24, 4).reshape(2, 24, 24)), y


# -- Radford and others 2019 --
class GPTBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.c_attn, self.c_proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln_2, self.c_fc, self.c_out = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, vocabulary=97, length=24, d=32, heads=4, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        self.h = nn.Sequential(*[GPTBlock(d, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(d)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        return F.linear(self.ln_f(self.h(x)), self.wte.weight)

    def loss(self, step):
        ids = tokens(step, 3, 21, 97)
        y = self(ids[:, :-1])
        return F.cross_entropy(y.flatten(0, 1), ids[:, 1:].flatten()), y


# -- Devlin and others 2019 --
class BertLayer(nn.Module):
    def __init__(self, d, heads, wide):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(d, d) for _ in range(4))
        self.norm1, self.intermediate, self.output, self.norm2 = nn.LayerNorm(d, 1e-12), nn.Linear(d, wide), nn.Linear(wide, d), nn.LayerNorm(d, 1e-12)

    def forward(self, x, mask):
        n, t, d = x.shape
        q, k, v = (f(x).reshape(n, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.dense(y.transpose(1, 2).reshape(n, t, d)))
        return self.norm2(x + self.output(F.gelu(self.intermediate(x))))


class Bert(nn.Module):
    def __init__(self, vocabulary=83, length=20, d=32, heads=4, layers=2):
        super().__init__()
        self.words, self.positions, self.types = nn.Embedding(vocabulary, d), nn.Embedding(length, d), nn.Embedding(2, d)
        self.norm = nn.LayerNorm(d, 1e-12)
        self.layer = nn.ModuleList([BertLayer(d, heads, 4 * d) for _ in range(layers)])
        self.pooler, self.transform, self.transform_norm = nn.Linear(d, d), nn.Linear(d, d), nn.LayerNorm(d, 1e-12)
        self.bias_words = nn.Parameter(torch.zeros(vocabulary))
        self.relation = nn.Linear(d, 2)

    def loss(self, step):
        n, t = 4, 18
        ids = tokens(step, n, t, 83)
        lengths = torch.tensor([t - 3 * r for r in range(n)])
        kinds = (torch.arange(t) >= t // 2).long().expand(n, t)
        seen = torch.arange(t) < lengths[:, None]
        x = self.norm(self.words(ids) + self.positions(torch.arange(t)) + self.types(kinds))
        for layer in self.layer:
            x = layer(x, seen[:, None, None, :])
        y = F.linear(self.transform_norm(F.gelu(self.transform(x))), self.words.weight, self.bias_words)
        labels = torch.where((torch.arange(t) % 4 == 1) & seen, tokens(step + 50, n, t, 83), -100)
        relation = self.relation(torch.tanh(self.pooler(x[:, 0])))
        return F.cross_entropy(y.flatten(0, 1), labels.flatten()) + F.cross_entropy(relation, classes(step, n, 2)), y


# -- Raffel and others 2020 --
def bucket(distance, both, buckets=8, farthest=20):
    """distance: of the key behind the query."""
    result = 0
    if both:
        buckets //= 2
        result = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return result + distance
    far = exact + int(math.log(distance / exact) / math.log(farthest / exact) * (buckets - exact))
    return result + min(far, buckets - 1)


class T5Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x, memory, bias):
        n, t, d = x.shape
        q, k, v = (f(y).reshape(n, -1, self.heads, d // self.heads).transpose(1, 2)
                   for f, y in ((self.q, x), (self.k, memory), (self.v, memory)))
        scores = q @ k.transpose(2, 3)
        if bias is not None:
            scores = scores + bias
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, d))


class T5Block(nn.Module):
    def __init__(self, d, heads, wide, crosses):
        super().__init__()
        self.norm1, self.self = nn.RMSNorm(d, 1e-6), T5Attention(d, heads)
        if crosses:
            self.norm2, self.cross = nn.RMSNorm(d, 1e-6), T5Attention(d, heads)
        self.norm3, self.wi, self.wo = nn.RMSNorm(d, 1e-6), nn.Linear(d, wide, bias=False), nn.Linear(wide, d, bias=False)

    def forward(self, x, bias, memory=None):
        y = self.norm1(x)
        x = x + self.self(y, y, bias)
        if memory is not None:
            x = x + self.cross(self.norm2(x), memory, None)
        return x + self.wo(F.relu(self.wi(self.norm3(x))))


class T5(nn.Module):
    def __init__(self, vocabulary=71, d=32, heads=4):
        super().__init__()
        self.d = d
        self.shared = nn.Embedding(vocabulary, d)
        self.encoder_bias, self.decoder_bias = nn.Embedding(8, heads), nn.Embedding(8, heads)
        self.encoder, self.decoder = T5Block(d, heads, 2 * d, False), T5Block(d, heads, 2 * d, True)
        self.encoder_norm, self.decoder_norm = nn.RMSNorm(d, 1e-6), nn.RMSNorm(d, 1e-6)

    def bias(self, table, t, both):
        b = torch.tensor([[bucket(k - q, both) for k in range(t)] for q in range(t)])
        y = table(b).permute(2, 0, 1)[None]
        return y if both else y.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)

    def loss(self, step):
        source, target = tokens(step, 3, 14, 71), tokens(step + 50, 3, 11, 71)
        memory = self.encoder_norm(self.encoder(self.shared(source), self.bias(self.encoder_bias, 14, True)))
        y = self.decoder(self.shared(target[:, :-1]), self.bias(self.decoder_bias, 10, False), memory)
        y = F.linear(self.decoder_norm(y) * self.d**-0.5, self.shared.weight)
        return F.cross_entropy(y.flatten(0, 1), target[:, 1:].flatten()), y


# -- Zaremba and others 2014, without dropout: states go on from step to step --
class LSTMLanguageModel(nn.Module):
    def __init__(self, vocabulary=61, d=24, hidden=28):
        super().__init__()
        self.embedding, self.lstm, self.decoder = nn.Embedding(vocabulary, d), nn.LSTM(d, hidden, 2), nn.Linear(hidden, vocabulary)
        self.state = None

    def loss(self, step):
        ids = tokens(step, 4, 13, 61).T
        y, state = self.lstm(self.embedding(ids[:-1]), self.state)
        self.state = tuple(s.detach() for s in state)
        y = self.decoder(y)
        return F.cross_entropy(y.flatten(0, 1), ids[1:].flatten()), y


# -- Dosovitskiy and others 2021 --
class ViTBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(d, 1e-6), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(d, 1e-6), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, d=24, heads=3, layers=2):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, 17, d))
        self.blocks = nn.Sequential(*[ViTBlock(d, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d, 1e-6), nn.Linear(d, 10)

    def loss(self, step):
        x = self.patch(image(step, 4, 3, 16, 16)).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(4, -1, -1), x), 1) + self.pos_embed
        y = self.head(self.norm(self.blocks(x))[:, 0])
        return F.cross_entropy(y, classes(step, 4, 10)), y


# -- Kingma and Welling 2014 --
class VAE(nn.Module):
    def __init__(self, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU(), nn.Flatten())
        self.mean, self.log_variance = nn.Linear(16 * 49, latent), nn.Linear(16 * 49, latent)
        self.grow = nn.Linear(latent, 16 * 49)
        self.decoder = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1))

    def loss(self, step):
        x = image(step, 4, 1, 28, 28) * 0.5 + 0.5
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + (0.5 * log_variance).exp() * tensor(2000 + step, (4, 6), 1)
        y = self.decoder(self.grow(z).reshape(4, 16, 7, 7))
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        return F.binary_cross_entropy_with_logits(y, x) + divergence / 784, y


# -- Radford and others 2016: the discriminator's turn and the generator's --
class DCGAN(nn.Module):
    players = ("discriminator.", "generator.")

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh())
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
            nn.Conv2d(8, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2),
            nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Flatten())

    def loss(self, step):
        drawn = self.generator(tensor(2000 + step, (6, 8, 1, 1), 1))
        ones = torch.ones(6, 1)
        if step % 2:
            return F.binary_cross_entropy_with_logits(self.discriminator(drawn), ones), drawn
        real = self.discriminator(image(step, 6, 1, 16, 16))
        false = self.discriminator(drawn.detach())
        return F.binary_cross_entropy_with_logits(real, ones) + F.binary_cross_entropy_with_logits(false, 0 * ones), false


MODELS = {"resnet18": ResNet18, "mobilenet_v2": MobileNetV2, "unet": UNet, "gpt2": GPT2, "bert": Bert, "t5": T5,
          "lstm_lm": LSTMLanguageModel, "vit": ViT, "vae": VAE, "dcgan": DCGAN}


def train(name, model, file):
    fill(model)
    named = list(model.named_parameters())
    players = getattr(model, "players", ("",))
    optimizers = [torch.optim.SGD([p for n, p in named if n.startswith(player)], RATE, 0.9) for player in players]
    lines = {what: ["-"] * STEPS for what in ["loss", "output"] + [n for n, p in named]}
    for step in range(STEPS):
        loss, output = model.loss(step)
        model.zero_grad(set_to_none=False)
        loss.backward()
        lines["loss"][step] = f"{loss.item():.12g}"
        lines["output"][step] = f"{(output.detach() * tensor(3000, output.shape, 1)).sum().item():.12g}"
        for n, p in named:
            if n.startswith(players[step % len(players)]):
                lines[n][step] = f"{p.grad.norm().item():.12g}"
        optimizers[step % len(players)].step()
    for what, numbers in lines.items():
        print(name, what, *numbers, file=file)


if __name__ == "__main__":
    with open(here / "expected.txt", "w") as file:
        for name, make in MODELS.items():
            train(name, make(), file)

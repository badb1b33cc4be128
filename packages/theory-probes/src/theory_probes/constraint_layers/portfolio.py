"""Portfolio weights under rules, by a recurrent network and a layer: the paper's allocation
study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .._data import data_file

TRADING_DAYS = 252
PREFERRED = ("AAPL", "AMD", "BBY", "GE", "MSFT")


@dataclass(frozen=True)
class Returns:
    """Daily simple returns (days, stocks), their dates as ISO text, and the tickers."""

    values: NDArray[np.float64]
    dates: list[str]
    tickers: list[str]
    source: str


def load_returns(path: str | Path | None = None) -> Returns:
    """Daily returns from a CSV of prices, a date in the first column and a ticker for each other.

    Without a path: the 20 stocks of the S&P 500 from 1990 to 2022 that skfolio carries.

    Raises
    ------
    FileNotFoundError
        If skfolio is not installed and no path is given.
    ValueError
        If the file is not such a table or holds a price that is not positive.
    """
    import csv
    import gzip

    given = Path(path) if path is not None else None
    file = given or data_file("skfolio", "1.12.2", "skfolio/datasets/data/sp500_dataset.csv.gz")
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8", newline="") as text:
        head, *rows = list(csv.reader(text))
    try:
        prices = np.array([[float(v) for v in row[1:]] for row in rows])
    except ValueError as error:
        raise ValueError(f"{file} is not a table of prices: {error}") from None
    if prices.ndim != 2 or len(prices) < 2 or not (prices > 0).all():
        raise ValueError(f"{file} is not a table of at least two rows of positive prices")
    values = prices[1:] / prices[:-1] - 1
    return Returns(values, [row[0][:10] for row in rows[1:]], head[1:], file.name)


def synthetic_returns(days: int, stocks: int, seed: int) -> Returns:
    """A stand-in: one market factor and slowly turning momentum, from 2015 on."""
    rng = np.random.default_rng(seed)
    market = 0.0004 + 0.01 * rng.normal(size=(days, 1))
    drift = 0.0005 * np.sin(np.arange(days)[:, None] / 120 + rng.uniform(0, 6, stocks))
    values = market + drift + 0.012 * rng.normal(size=(days, stocks))
    start = np.datetime64("2015-01-01")
    dates = [str(start + i * 3650 // days) for i in range(days)]
    names = [*PREFERRED, *(f"S{i}" for i in range(stocks - len(PREFERRED)))]
    return Returns(values, dates, names, "synthetic")


def windows(
    returns: Returns, length: int, horizon: int, stride: int
) -> tuple[Tensor, Tensor, list[str]]:
    """(N, length, stocks) of the past, (N, horizon, stocks) of the future, and the first new
    day."""
    starts = range(0, len(returns.values) - length - horizon + 1, stride)
    past = np.stack([returns.values[s : s + length] for s in starts])
    future = np.stack([returns.values[s + length : s + length + horizon] for s in starts])
    days = [returns.dates[s + length] for s in starts]
    return torch.from_numpy(past).float(), torch.from_numpy(future).float(), days


class Forecaster(nn.Module):
    """An LSTM on scaled returns; its last state gives a forecast and a score for each stock."""

    def __init__(self, stocks: int, hidden: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.lstm = nn.LSTM(stocks, hidden, batch_first=True)
            self.forecast = nn.Linear(hidden, stocks)
            self.score = nn.Linear(hidden, stocks)

    def forward(self, past: Tensor) -> tuple[Tensor, Tensor]:
        state = self.lstm(100 * past)[0][:, -1]
        return self.forecast(state) / 100, self.score(state)


def sharpe(daily: Tensor, risk_free: float) -> Tensor:
    """Annual Sharpe ratio of daily returns along the last dimension."""
    excess = daily - risk_free / TRADING_DAYS
    ratio: Tensor = TRADING_DAYS**0.5 * excess.mean(-1) / (excess.std(-1) + 1e-6)
    return ratio


def train(
    layer: Callable[[Tensor], Tensor],
    past: Tensor,
    future: Tensor,
    *,
    epochs: int,
    hidden: int,
    risk_free: float,
    seed: int,
    extra_loss: Callable[[Tensor], Tensor] | None = None,
) -> Forecaster:
    """Fit forecasts (squared error) and weights (Sharpe ratio over the horizon) together."""
    net = Forecaster(past.shape[2], hidden, seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    rng = np.random.default_rng([seed, 2])
    for _ in range(epochs):
        for chosen in np.array_split(rng.permutation(len(past)), max(1, len(past) // 128)):
            index = torch.from_numpy(chosen)
            forecast, score = net(past[index])
            weights = layer(score)
            ahead = future[index]
            daily = (ahead * weights[:, None]).sum(-1)
            error = (100 * (forecast - ahead.mean(1))).square().mean()
            loss = error - sharpe(daily, risk_free).mean()
            if extra_loss is not None:
                loss = loss + extra_loss(weights)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return net


def block_bootstrap(
    daily: NDArray[np.float64], risk_free: float, block: int, rng: np.random.Generator
) -> tuple[float, float]:
    """A 95% interval of the Sharpe ratio from resampled blocks of consecutive days."""
    count = -(-len(daily) // block)
    starts = rng.integers(len(daily), size=(1000, count))
    index = (starts[:, :, None] + np.arange(block)).reshape(1000, -1)[:, : len(daily)] % len(daily)
    ratios = sharpe(torch.from_numpy(daily[index]), risk_free).numpy()
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)

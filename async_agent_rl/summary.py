"""The end of a run: success before and after, and the learning curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from async_agent_rl.metrics import UpdateRecord
from async_agent_rl.reports import EvaluationReport, paired_gain, wilson_interval

_WINDOW = 5
"""Updates in the running mean."""


def comparison_lines(before: Sequence[EvaluationReport], after: Sequence[EvaluationReport]) -> list[str]:
    """Success before and after for each way of decoding, with the paired gain."""
    lines = []
    for early in before:
        late = next((report for report in after if report.temperature == early.temperature), None)
        if late is not None:
            gain, low, high = paired_gain(early.wins, late.wins)
            lines.append(
                f"{early.decoding:7s} success {_share(early)} -> {_share(late)}  n={early.n}  "
                f"gain {gain * 100:+.1f} points, paired 95 % interval [{low * 100:+.1f}, {high * 100:+.1f}]"
            )
    return lines


def _share(report: EvaluationReport) -> str:
    return f"{report.success:.1%} [{report.success_low:.1%}, {report.success_high:.1%}]"


def draw_learning_curve(
    path: Path,
    title: str,
    records: Sequence[UpdateRecord],
    panels: Sequence[tuple[int, EvaluationReport]],
    trajectories_per_update: int,
) -> None:
    """Write a PNG: training success by update (with a running mean), and the validation panel before and after.

    Args:
        path: of the PNG.
        title: over the picture.
        records: of the run, ascending.
        panels: (version, report) of every evaluation.
        trajectories_per_update: B x G, for the training interval.
    """
    import matplotlib  # slow to import, and only needed here

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=(8.0, 4.5), dpi=120)
    versions = [record.version for record in records]
    success = [record.success for record in records]
    label = f"one update ({trajectories_per_update} episodes)"
    axes.plot(versions, success, ".", color="0.65", markersize=4, label=label)
    means, bounds = _running_mean(success, trajectories_per_update)
    axes.plot(versions, means, color="C0", label=f"training goals, T=1, mean of {_WINDOW} updates")
    axes.fill_between(versions, [low for low, _ in bounds], [high for _, high in bounds], color="C0", alpha=0.15, lw=0)
    for number, temperature in enumerate(sorted({report.temperature for _, report in panels})):
        points = [(version, report) for version, report in panels if report.temperature == temperature]
        shares = [report.success for _, report in points]
        errors = [
            [report.success - report.success_low for _, report in points],
            [report.success_high - report.success for _, report in points],
        ]
        axes.errorbar(
            [version for version, _ in points],
            shares,
            yerr=errors,
            fmt="o--" if len(points) > 2 else "o",  # two points are no curve
            color=f"C{number + 1}",
            capsize=4,
            label=f"held-out products, {points[0][1].decoding}, n={points[0][1].n}",
        )
    axes.set(xlabel="version (completed updates)", ylabel="success rate", ylim=(0, 1), title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _running_mean(success: Sequence[float], trajectories: int) -> tuple[list[float], list[tuple[float, float]]]:
    """Mean over the last updates, and its Wilson interval; rows of one group count as independent."""
    means, bounds = [], []
    for end in range(1, len(success) + 1):
        window = success[max(0, end - _WINDOW) : end]
        episodes = trajectories * len(window)
        means.append(sum(window) / len(window))
        bounds.append(wilson_interval(round(means[-1] * episodes), episodes))
    return means, bounds

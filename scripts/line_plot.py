"""Line plots as SVG, without a library: what the reports under docs/experiments show."""

COLORS = ["#888888", "#1b7837", "#2166ac", "#b2182b", "#e08214", "#542788"]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 300, 52, 14, 12, 36


def nice_step(span, most):
    """The least of 1, 2, 5 x 10^n that needs no more than `most` steps."""
    step = 10.0 ** -9
    while True:
        for factor in (1, 2, 5):
            if span / (step * factor) <= most:
                return step * factor
        step *= 10


def line_plot(path, series, x_label, percent=False):
    """series: [(name, [(x, y), ...]), ...]; percent: y is a share."""
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points]
    step = nice_step(max(ys) - min(ys) or 1, 7)
    low, high = step * int(min(ys) / step), step * (int(max(ys) / step) + 1)
    x_low, x_high = min(xs), max(xs)

    def at_x(x):
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - x_low) / (x_high - x_low)

    def at_y(y):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT + 20 * len(series)}" '
             'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for n in range(round((high - low) / step) + 1):
        value = low + n * step
        text = f"{value:.0%}" if percent else f"{value:g}" if step >= 1 else f"{value:.2g}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y(value):.1f}" y2="{at_y(value):.1f}" '
                     f'stroke="#dddddd"/><text x="{LEFT - 6}" y="{at_y(value) + 4:.1f}" text-anchor="end">{text}</text>')
    x_step = nice_step(x_high - x_low, 10)
    x = x_step * -(-x_low // x_step)
    while x <= x_high:
        parts.append(f'<text x="{at_x(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
        x += x_step
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">{x_label}</text>')
    for n, (name, points) in enumerate(series):
        line = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
        y = HEIGHT + 14 + 20 * n
        color = COLORS[n % len(COLORS)]
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{line}"/>'
                     f'<line x1="{LEFT}" x2="{LEFT + 24}" y1="{y - 4}" y2="{y - 4}" stroke="{color}" '
                     f'stroke-width="2"/><text x="{LEFT + 32}" y="{y}">{name}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*parts, "</svg>\n"]))

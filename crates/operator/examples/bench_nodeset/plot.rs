//! Plots of cost against size, both on logarithmic axes, where a power of the size is a straight line.

use std::fmt::Write as _;

pub struct Series<'a> {
    pub name: &'a str,
    /// Size and cost.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;
/// Height of a line of the legend, which is above the frame.
const LEGEND: f64 = 20.0;
/// Free space between the outermost points and the frame, as a factor. Twice this covers the widest gap between ticks.
const MARGIN: f64 = 1.6;
const STYLE: &str = "<style>
text { font: 13px sans-serif; fill: #24292f; }
.title { font-size: 15px; }
.back { fill: #ffffff; }
.grid { stroke: #d0d7de; }
.line { fill: none; stroke: currentColor; stroke-width: 2; }
.dot { fill: currentColor; }
.s0 { color: #0969da; } .s1 { color: #bc4c00; } .s2 { color: #6e7781; } .s3 { color: #8250df; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.back { fill: #0d1117; }
.grid { stroke: #30363d; }
.s0 { color: #58a6ff; } .s1 { color: #f0883e; } .s2 { color: #9198a1; } .s3 { color: #bc8cff; }
}
</style>
";

/// Returns the exponent of the power of the size that fits the cost best: least squares of the logarithms. `None` for
/// fewer than two sizes.
pub fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logarithms: Vec<(f64, f64)> = positive(points).map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logarithms.len() as f64;
    let mean_x = logarithms.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = logarithms.iter().map(|(_, y)| y).sum::<f64>() / count;
    let square: f64 = logarithms.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let product: f64 = logarithms.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    (square > 0.0).then(|| product / square)
}

/// Draws the series. Returns `None` if they have no points.
pub fn svg(title: &str, series: &[Series<'_>]) -> Option<String> {
    let points = || series.iter().flat_map(|series| positive(&series.points));
    points().next()?;
    let horizontal = Axis::of(points().map(|(x, _)| x), LEFT, WIDTH - RIGHT);
    let drawn = series
        .iter()
        .filter(|series| positive(&series.points).next().is_some());
    let top = TOP + LEGEND * drawn.clone().count() as f64;
    let vertical = Axis::of(points().map(|(_, y)| y), HEIGHT - BOTTOM, top);

    let mut sizes: Vec<f64> = points().map(|(x, _)| x).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\">\n{STYLE}"
    );
    text.push_str("<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n");
    writeln!(
        text,
        "<text class=\"title\" x=\"{LEFT}\" y=\"24\">{}</text>",
        escaped(title)
    )
    .unwrap();
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for size in sizes {
        let x = horizontal.place(size);
        line(&mut text, (x, top), (x, bottom));
        label(&mut text, (x, bottom + 18.0), "middle", &size.to_string());
    }
    for tick in vertical.ticks() {
        let y = vertical.place(tick);
        line(&mut text, (LEFT, y), (right, y));
        label(&mut text, (LEFT - 8.0, y + 4.0), "end", &tick.to_string());
    }
    label(
        &mut text,
        (f64::midpoint(LEFT, right), HEIGHT - 10.0),
        "middle",
        "workers",
    );
    for (index, series) in drawn.enumerate() {
        let places: Vec<(f64, f64)> = positive(&series.points)
            .map(|(x, y)| (horizontal.place(x), vertical.place(y)))
            .collect();
        writeln!(text, "<g class=\"s{index}\">").unwrap();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        writeln!(text, "<polyline class=\"line\" points=\"{}\"/>", path.join(" ")).unwrap();
        for (x, y) in places {
            writeln!(
                text,
                "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"
            )
            .unwrap();
        }
        let y = TOP + 8.0 + LEGEND * index as f64;
        writeln!(
            text,
            "<circle class=\"dot\" cx=\"{}\" cy=\"{}\" r=\"4\"/>",
            LEFT + 14.0,
            y - 4.0
        )
        .unwrap();
        let name = match exponent(&series.points) {
            Some(exponent) => format!("{}: ∝ N^{exponent:.2}", series.name),
            None => series.name.to_owned(),
        };
        label(&mut text, (LEFT + 26.0, y), "start", &name);
        text.push_str("</g>\n");
    }
    text.push_str("</svg>\n");
    Some(text)
}

/// A logarithmic axis.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        Self {
            low: low / MARGIN,
            high: high * MARGIN,
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }

    /// Returns round numbers: 1, 2 and 5 times a power of ten.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let all = (-6..=9).flat_map(|power| [1, 2, 5].map(|digit| format!("{digit}e{power}")));
        let numbers = all.filter_map(|text| text.parse::<f64>().ok());
        numbers.filter(|number| (self.low..=self.high).contains(number))
    }
}

/// Returns the points that have a logarithm.
fn positive(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    points.iter().copied().filter(|(x, y)| *x > 0.0 && *y > 0.0)
}

fn line(text: &mut String, from: (f64, f64), to: (f64, f64)) {
    writeln!(
        text,
        "<line class=\"grid\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        from.0, from.1, to.0, to.1
    )
    .unwrap();
}

fn label(text: &mut String, at: (f64, f64), anchor: &str, words: &str) {
    writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
        at.0,
        at.1,
        escaped(words)
    )
    .unwrap();
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_power_is_found() {
        for power in [0.0, 0.5, 1.0, 2.0] {
            let points: Vec<(f64, f64)> = [500.0_f64, 2000.0, 5000.0]
                .iter()
                .map(|size| (*size, 3.0 * size.powf(power)))
                .collect();
            let found = exponent(&points).unwrap();
            assert!((found - power).abs() < 1e-9, "{found} for {power}");
        }
    }

    #[test]
    fn one_size_has_no_exponent() {
        assert_eq!(exponent(&[]), None);
        assert_eq!(exponent(&[(500.0, 3.0)]), None);
        assert_eq!(exponent(&[(500.0, 3.0), (500.0, 4.0)]), None);
        assert_eq!(exponent(&[(500.0, 3.0), (2000.0, 0.0)]), None);
    }

    #[test]
    fn a_plot_is_well_formed() {
        let series = [
            Series {
                name: "operator",
                points: vec![(500.0, 8.0), (2000.0, 31.0), (5000.0, 80.0)],
            },
            Series {
                name: "a < b & c",
                points: vec![(500.0, 7.0), (2000.0, 0.0)],
            },
        ];
        let text = svg("Seconds", &series).unwrap();
        let mut open = Vec::new();
        for tag in text.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap();
            let name: String = tag.chars().take_while(|letter| !letter.is_whitespace()).collect();
            if let Some(name) = name.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name), "{text}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(text.contains("operator: ∝ N^1.00"), "{text}");
        assert!(text.contains("a &lt; b &amp; c</text>"), "{text}");
        assert!(text.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn all_points_are_inside_the_frame() {
        let axis = Axis::of([3.0, 700.0].into_iter(), LEFT, WIDTH - RIGHT);
        for value in [3.0, 50.0, 700.0] {
            let place = axis.place(value);
            assert!((LEFT..=WIDTH - RIGHT).contains(&place), "{place}");
        }
        let ticks: Vec<f64> = axis.ticks().collect();
        assert_eq!(ticks, [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
    }

    #[test]
    fn nothing_is_drawn_without_points() {
        assert!(svg("Seconds", &[]).is_none());
    }
}

//! The results: a table, JSON and plots.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::iter::once;
use std::path::Path;
use std::{fs, io};

use serde_json::{Value, json};

use crate::plot::{self, Series};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    BareFloor,
    Floor,
    Ready,
    ReadyRatio,
    PodWrites,
    SlurmReads,
    SlurmWrites,
    Cpu,
    RestMemory,
    PeakMemory,
    RestCpu,
    RestWrites,
    RestSlurmWrites,
    LatencyMedian,
    Latency99,
    LatencyMax,
    AwaitedMedian,
    Awaited99,
    AwaitedMax,
    Cordon,
    CordonWrites,
    Return,
    ReturnWrites,
    BareDeletion,
    Deletion,
    ScaleIn,
    ScaleInPodWrites,
    ScaleInReads,
    ScaleInWrites,
}

impl Measure {
    /// In the order of the table.
    const ALL: [Self; 29] = [
        Self::BareFloor,
        Self::Floor,
        Self::Ready,
        Self::ReadyRatio,
        Self::PodWrites,
        Self::SlurmReads,
        Self::SlurmWrites,
        Self::Cpu,
        Self::RestMemory,
        Self::PeakMemory,
        Self::RestCpu,
        Self::RestWrites,
        Self::RestSlurmWrites,
        Self::LatencyMedian,
        Self::Latency99,
        Self::LatencyMax,
        Self::AwaitedMedian,
        Self::Awaited99,
        Self::AwaitedMax,
        Self::Cordon,
        Self::CordonWrites,
        Self::Return,
        Self::ReturnWrites,
        Self::BareDeletion,
        Self::Deletion,
        Self::ScaleIn,
        Self::ScaleInPodWrites,
        Self::ScaleInReads,
        Self::ScaleInWrites,
    ];

    /// Returns the key in JSON, the title in the table and the number of decimals.
    pub fn describe(self) -> (&'static str, &'static str, usize) {
        match self {
            Self::BareFloor => ("bareFloorSeconds", "floor: pods without labels ready, s", 1),
            Self::Floor => ("floorSeconds", "floor: pods with the workers' labels ready, s", 1),
            Self::Ready => ("readySeconds", "0 → N workers ready, s", 1),
            Self::ReadyRatio => ("readyToFloor", "ready / floor with labels", 2),
            Self::PodWrites => ("podWritesPerWorker", "0 → N: pod writes per worker", 2),
            Self::SlurmReads => ("slurmReads", "0 → N: Slurm reads", 0),
            Self::SlurmWrites => ("slurmWrites", "0 → N: Slurm writes", 0),
            Self::Cpu => ("cpuSeconds", "0 → N: operator CPU, s", 2),
            Self::RestMemory => ("restMemoryMiB", "operator memory at rest, MiB", 1),
            Self::PeakMemory => ("peakMemoryMiB", "operator memory, peak, MiB", 1),
            Self::RestCpu => ("restCpuSecondsPerMinute", "at rest: operator CPU, s/min", 3),
            Self::RestWrites => ("restKubernetesWrites", "at rest: Kubernetes writes", 0),
            Self::RestSlurmWrites => ("restSlurmWrites", "at rest: Slurm writes", 0),
            Self::LatencyMedian => ("latencyP50Seconds", "Slurm change → pod condition, p50, s", 2),
            Self::Latency99 => ("latencyP99Seconds", "Slurm change → pod condition, p99, s", 2),
            Self::LatencyMax => ("latencyMaxSeconds", "Slurm change → pod condition, max, s", 2),
            Self::AwaitedMedian => ("awaitedP50Seconds", "… of an awaited node, p50, s", 2),
            Self::Awaited99 => ("awaitedP99Seconds", "… of an awaited node, p99, s", 2),
            Self::AwaitedMax => ("awaitedMaxSeconds", "… of an awaited node, max, s", 2),
            Self::Cordon => ("cordonSeconds", "cordon → all drained, s", 1),
            Self::CordonWrites => ("cordonSlurmWrites", "cordon: Slurm writes", 0),
            Self::Return => ("returnSeconds", "uncordon → none drained, s", 1),
            Self::ReturnWrites => ("returnSlurmWrites", "uncordon: Slurm writes", 0),
            Self::BareDeletion => ("bareDeletionSeconds", "floor: pods without labels gone, s", 1),
            Self::Deletion => (
                "deletionSeconds",
                "floor: pods with the workers' labels gone, s",
                1,
            ),
            Self::ScaleIn => ("scaleInSeconds", "N → 0 workers gone, s", 1),
            Self::ScaleInPodWrites => ("scaleInPodWritesPerWorker", "N → 0: pod writes per worker", 2),
            Self::ScaleInReads => ("scaleInSlurmReads", "N → 0: Slurm reads", 0),
            Self::ScaleInWrites => ("scaleInSlurmWrites", "N → 0: Slurm writes", 0),
        }
    }
}

/// Processor seconds by program.
pub type Seconds = BTreeMap<&'static str, f64>;

/// The work during which the processor time of each program is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Pods of a plain client, with the workers' labels.
    Floor,
    /// 0 → N workers.
    ScaleOut,
}

impl Work {
    /// Returns the key in JSON and the title in the table.
    fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Floor => ("floor", "floor"),
            Self::ScaleOut => ("ready", "0 → N"),
        }
    }
}

/// The figures for one number of workers.
pub struct Size {
    pub workers: usize,
    figures: BTreeMap<Measure, f64>,
    pub programs: BTreeMap<Work, Seconds>,
}

impl Size {
    pub fn new(workers: usize) -> Self {
        Self {
            workers,
            figures: BTreeMap::new(),
            programs: BTreeMap::new(),
        }
    }

    pub fn set(&mut self, measure: Measure, figure: f64) {
        self.figures.insert(measure, figure);
    }

    /// Leaves out a figure that this operator does not give.
    pub fn maybe(&mut self, measure: Measure, figure: Option<f64>) {
        if let Some(figure) = figure {
            self.set(measure, figure);
        }
    }

    pub fn get(&self, measure: Measure) -> Option<f64> {
        self.figures.get(&measure).copied()
    }
}

pub struct Report {
    /// The versions and the machine.
    pub about: BTreeMap<&'static str, String>,
    pub sizes: Vec<Size>,
}

/// A plot: the end of its file name, the title of the cost, and the measures with their legends.
type Plot = (&'static str, &'static str, &'static [(Measure, &'static str)]);

const PLOTS: [Plot; 6] = [
    (
        "ready",
        "Time until N workers are ready, s",
        &[
            (Measure::Ready, "operator"),
            (Measure::Floor, "floor with the workers' labels"),
            (Measure::BareFloor, "floor without labels"),
        ],
    ),
    (
        "cpu",
        "Operator CPU for 0 → N workers, s",
        &[(Measure::Cpu, "CPU")],
    ),
    (
        "memory",
        "Operator memory, MiB",
        &[(Measure::PeakMemory, "peak"), (Measure::RestMemory, "at rest")],
    ),
    (
        "latency",
        "Time from a change in Slurm to the pod's condition, s",
        &[
            (Measure::AwaitedMedian, "awaited node, p50"),
            (Measure::LatencyMedian, "other node, p50"),
            (Measure::LatencyMax, "other node, max"),
            (Measure::AwaitedMax, "awaited node, max"),
        ],
    ),
    (
        "cordon",
        "Time until N cordoned workers are drained, s",
        &[(Measure::Cordon, "operator")],
    ),
    (
        "scale-in",
        "Time until N workers are gone, s",
        &[
            (Measure::ScaleIn, "operator"),
            (Measure::Deletion, "floor with the workers' labels"),
            (Measure::BareDeletion, "floor without labels"),
        ],
    ),
];

impl Report {
    fn points(&self, measure: Measure) -> Vec<(f64, f64)> {
        let point = |size: &Size| Some((size.workers as f64, size.get(measure)?));
        self.sizes.iter().filter_map(point).collect()
    }

    /// Returns a Markdown table, which is readable as text: a row per measure, a column per size.
    pub fn table(&self) -> String {
        let mut rows = vec![
            once("workers".to_owned())
                .chain(self.sizes.iter().map(|size| size.workers.to_string()))
                .collect::<Vec<_>>(),
        ];
        for measure in Measure::ALL {
            let (_, title, decimals) = measure.describe();
            let cell = |size: &Size| {
                let figure = size.get(measure);
                figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.decimals$}"))
            };
            rows.push(
                once(title.to_owned())
                    .chain(self.sizes.iter().map(cell))
                    .collect(),
            );
        }
        aligned(&rows)
    }

    /// Returns a table of the processor time of each program: two columns per size. `None` if it was not measured.
    pub fn programs(&self) -> Option<String> {
        let columns: Vec<(usize, &Work, &Seconds)> = self
            .sizes
            .iter()
            .flat_map(|size| {
                let works = size.programs.iter();
                works.map(|(work, seconds)| (size.workers, work, seconds))
            })
            .collect();
        let programs: BTreeSet<&str> = columns
            .iter()
            .flat_map(|(_, _, seconds)| seconds.keys().copied())
            .collect();
        if programs.is_empty() {
            return None;
        }
        let titles = columns
            .iter()
            .map(|(workers, work, _)| format!("{workers}: {}", work.describe().1));
        let mut rows = vec![once("processor seconds".to_owned()).chain(titles).collect()];
        for program in programs {
            let cells = columns.iter().map(|(_, _, seconds)| {
                let figure = seconds.get(program);
                figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.1}"))
            });
            rows.push(once(program.to_owned()).chain(cells).collect::<Vec<_>>());
        }
        Some(aligned(&rows))
    }

    pub fn json(&self) -> Value {
        let sizes = self.sizes.iter().map(|size| {
            let mut entry = json!({ "workers": size.workers });
            for (measure, figure) in &size.figures {
                // More digits than were measured would only make the differences between runs harder to read.
                entry[measure.describe().0] = json!(rounded(*figure));
            }
            for (work, seconds) in &size.programs {
                let seconds: BTreeMap<&str, f64> = seconds
                    .iter()
                    .map(|(program, seconds)| (*program, rounded(*seconds)))
                    .collect();
                entry["processorSeconds"][work.describe().0] = json!(seconds);
            }
            entry
        });
        let fitted = PLOTS.iter().flat_map(|(_, _, series)| series.iter());
        let exponents = fitted.filter_map(|(measure, _)| {
            let exponent = plot::exponent(&self.points(*measure))?;
            Some((measure.describe().0.to_owned(), json!(rounded(exponent))))
        });
        json!({
            "about": self.about,
            "sizes": sizes.collect::<Vec<_>>(),
            "exponents": exponents.collect::<serde_json::Map<_, _>>(),
        })
    }

    /// Writes JSON to `out`, and a page and the plots next to it.
    pub fn write(&self, out: &Path) -> io::Result<()> {
        if let Some(directory) = out.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(out, format!("{:#}\n", self.json()))?;
        let stem = out.file_stem().unwrap_or_default().to_string_lossy();
        let mut page =
            String::from("# `cargo xtask bench nodeset`\n\nThe rows are explained in README.md.\n\n");
        for (what, value) in &self.about {
            writeln!(page, "- {what}: {value}").unwrap();
        }
        write!(page, "\n{}", self.table()).unwrap();
        if let Some(programs) = self.programs() {
            write!(page, "\n{programs}").unwrap();
        }
        for (part, title, series) in PLOTS {
            let series: Vec<Series<'_>> = series
                .iter()
                .map(|(measure, name)| Series {
                    name,
                    points: self.points(*measure),
                })
                .collect();
            // Nothing to draw: a short run does not measure it.
            let Some(drawn) = plot::svg(title, &series) else {
                continue;
            };
            let name = format!("{stem}-{part}.svg");
            fs::write(out.with_file_name(&name), drawn)?;
            writeln!(page, "\n![{title}]({name})").unwrap();
        }
        fs::write(out.with_extension("md"), page)
    }
}

fn rounded(figure: f64) -> f64 {
    (figure * 1000.0).round() / 1000.0
}

/// Returns a Markdown table with columns of equal width. The first row is the head.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let first = width(0).unwrap_or(0);
    let others = (1..rows[0].len()).filter_map(width).max().unwrap_or(0).max(9);
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        write!(text, "| {:first$} |", row[0]).unwrap();
        for cell in &row[1..] {
            write!(text, " {cell:>others$} |").unwrap();
        }
        text.push('\n');
        if index == 0 {
            let rules = format!("{}:|", "-".repeat(others + 1)).repeat(row.len() - 1);
            writeln!(text, "|{}|{rules}", "-".repeat(first + 2)).unwrap();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let sizes = [(500, 10.0), (2000, 40.0)].map(|(workers, seconds)| {
            let mut size = Size::new(workers);
            size.set(Measure::Ready, seconds);
            size
        });
        Report {
            about: BTreeMap::from([("slurm", "slurm 26.05.5".to_owned())]),
            sizes: sizes.into(),
        }
    }

    #[test]
    fn the_table_has_a_row_per_measure_and_a_column_per_size() {
        let table = report().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), Measure::ALL.len() + 2);
        let widths: Vec<usize> = lines.iter().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
        assert!(table.contains("      10.0 |      40.0 |"), "{table}");
        assert!(table.contains("         - |         - |"), "{table}");
    }

    #[test]
    fn json_has_figures_and_exponents() {
        let json = report().json();
        assert_eq!(json["sizes"][1]["readySeconds"], 40.0);
        assert_eq!(json["sizes"][1]["cordonSeconds"], Value::Null);
        assert_eq!(json["exponents"], json!({ "readySeconds": 1.0 }));
        assert_eq!(json["about"]["slurm"], "slurm 26.05.5");
    }

    #[test]
    fn the_time_of_each_program_has_a_column_per_work() {
        let mut report = report();
        assert_eq!(report.programs(), None);
        report.sizes[1].programs = BTreeMap::from([
            (Work::Floor, BTreeMap::from([("etcd", 1.0)])),
            (Work::ScaleOut, BTreeMap::from([("etcd", 2.0), ("operator", 3.0)])),
        ]);
        let table = report.programs().unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[0].ends_with("| 2000: floor | 2000: 0 → N |"), "{table}");
        assert!(lines[3].ends_with("|           - |         3.0 |"), "{table}");
        assert_eq!(
            report.json()["sizes"][1]["processorSeconds"],
            json!({ "floor": { "etcd": 1.0 }, "ready": { "etcd": 2.0, "operator": 3.0 } })
        );
    }

    #[test]
    fn every_measure_is_in_the_table_once() {
        let mut keys: Vec<&str> = Measure::ALL.iter().map(|measure| measure.describe().0).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), Measure::ALL.len());
    }
}

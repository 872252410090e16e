//! Medians, and ratios within each round.

use std::fmt::Write;

use serde_json::json;

use crate::window::Measured;
use crate::work::Shape;

/// What every round has shown, by client.
pub struct Report {
    shape: Shape,
    tls: bool,
    rows: Vec<(String, Vec<Measured>)>,
}

/// How one client did.
struct Row {
    /// Of bytes for large objects, of requests for whole ones.
    rate: f64,
    /// Seconds for 1 GiB, or microseconds for a request.
    cpu: f64,
}

impl Report {
    pub fn new(shape: &Shape, tls: bool, clients: &[String]) -> Report {
        let rows = clients.iter().map(|client| (client.clone(), Vec::new()));
        Report {
            shape: shape.clone(),
            tls,
            rows: rows.collect(),
        }
    }

    pub fn add(&mut self, client: &str, measured: Measured) {
        if let Some((_, rounds)) = self.rows.iter_mut().find(|(name, _)| name == client) {
            rounds.push(measured);
        }
    }

    fn row(&self, measured: &Measured) -> Row {
        let Measured {
            requests,
            seconds,
            cpu_seconds,
        } = *measured;
        let requests = requests as f64;
        let cpu_seconds = cpu_seconds.unwrap_or(f64::NAN);
        let gib = requests * self.shape.each() as f64 / (1u64 << 30) as f64;
        match self.shape.part {
            0 => Row {
                rate: requests / seconds,
                cpu: cpu_seconds * 1e6 / requests,
            },
            _ => Row {
                rate: gib / seconds,
                cpu: cpu_seconds / gib,
            },
        }
    }

    /// The median over the rounds of a figure of one client, as a ratio to another's of the same round.
    fn ratio(&self, of: &[Measured], to: &str, figure: fn(&Row) -> f64) -> Option<f64> {
        let (_, to) = self.rows.iter().find(|(name, _)| name == to)?;
        let ratios = of
            .iter()
            .zip(to)
            .map(|(of, to)| figure(&self.row(of)) / figure(&self.row(to)));
        median(ratios.collect())
    }

    pub fn text(&self) -> String {
        let rounds = self.rows.first().map_or(0, |(_, rounds)| rounds.len());
        let over = if self.tls { "TLS" } else { "plain HTTP" };
        let mut text = format!("{}, {over}; medians of {rounds} rounds\n\n", self.shape);
        let (rate, cpu) = match self.shape.part {
            0 => ("GETs/s", "CPU us/GET"),
            _ => ("GiB/s", "CPU-s/GiB"),
        };
        let _ = writeln!(
            text,
            "| client | {rate} | {cpu} | rate : floor | CPU : floor | s3engine's rate : its | s3engine's CPU : its |\n|---|---|---|---|---|---|---|"
        );
        for (client, measured) in &self.rows {
            let of = |figure: fn(&Row) -> f64| {
                median(measured.iter().map(|one| figure(&self.row(one))).collect())
                    .unwrap_or(f64::NAN)
            };
            let shown = |ratio: Option<f64>| {
                let known = ratio.filter(|ratio| !ratio.is_nan());
                known.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
            };
            let to_floor = |figure| shown(self.ratio(measured, "floor", figure));
            let ours = |figure| {
                shown(
                    self.ratio(measured, "s3engine", figure)
                        .map(|ratio| 1.0 / ratio),
                )
            };
            let rate = of(|row| row.rate);
            let rate = if self.shape.part == 0 {
                format!("{rate:.0}")
            } else {
                format!("{rate:.2}")
            };
            let cpu = match (of(|row| row.cpu), self.shape.part) {
                (cpu, _) if cpu.is_nan() => "-".to_owned(),
                (cpu, 0) => format!("{cpu:.1}"),
                (cpu, _) => format!("{cpu:.3}"),
            };
            let _ = writeln!(
                text,
                "| {client} | {rate} | {cpu} | {} | {} | {} | {} |",
                to_floor(|row| row.rate),
                to_floor(|row| row.cpu),
                ours(|row| row.rate),
                ours(|row| row.cpu),
            );
        }
        text
    }

    pub fn json(&self) -> String {
        let Shape {
            size,
            part,
            in_flight,
            threads,
            seconds,
        } = self.shape;
        let clients: serde_json::Map<_, _> = self
            .rows
            .iter()
            .map(|(client, rounds)| (client.clone(), json!(rounds)))
            .collect();
        let shape = json!({ "size": size, "part": part, "in_flight": in_flight, "threads": threads, "seconds": seconds });
        format!(
            "{:#}\n",
            json!({ "schema": 1, "shape": shape, "tls": self.tls, "rounds": clients })
        )
    }
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    let middle = all.get(all.len() / 2)?;
    match all.len() % 2 {
        0 => Some((all[all.len() / 2 - 1] + middle) / 2.0),
        _ => Some(*middle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let shape = Shape {
            size: 1 << 30,
            part: 1 << 30,
            in_flight: 1,
            threads: 1,
            seconds: 1.0,
        };
        let mut report = Report::new(&shape, false, &["floor".into(), "s3engine".into()]);
        for speed in [1, 2, 4] {
            let measured = |requests| Measured {
                requests,
                seconds: 1.0,
                cpu_seconds: Some(1.0),
            };
            report.add("floor", measured(10 * speed));
            report.add("s3engine", measured(5 * speed));
        }
        let text = report.text();
        assert!(
            text.contains("| s3engine | 10.00 | 0.100 | 0.50 | 2.00 | 1.00 | 1.00 |"),
            "{text}"
        );
    }
}

//! What the seconds of a run show.

use s3engine::Concurrency;

/// Part of the rate of before that is as good as all of it.
const AS_BEFORE: f64 = 0.9;

/// Rates of one second.
#[derive(Clone, Copy)]
pub(super) struct Second {
    /// GETs.
    pub(super) served: f64,
    pub(super) failed: f64,
    /// As the server counts them.
    pub(super) requests: f64,
    pub(super) mb_per_s: f64,
}

pub(super) struct Shown {
    pub(super) adaptive: bool,
    pub(super) window: Option<Concurrency>,
    pub(super) before: Vec<Second>,
    pub(super) during: Vec<Second>,
    pub(super) after: Vec<Second>,
}

fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = of.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

impl Shown {
    /// The second after the burst that was as good as those before it, counted from one.
    fn back_in(&self) -> Option<usize> {
        let enough = AS_BEFORE * median(self.before.iter().map(|one| one.served));
        let back = self.after.iter().position(|one| one.served >= enough);
        back.map(|nth| nth + 1)
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "simulated: an S3 simulator of this machine; adaptive {}\n{:8} {:>7} {:>10} {:>12} {:>10} {:>10}\n",
            if self.adaptive { "on" } else { "off" },
            "",
            "seconds",
            "MB/s",
            "requests/s",
            "GETs/s",
            "failed/s"
        );
        for (name, seconds) in self.phases() {
            let of = |what: fn(&Second) -> f64| median(seconds.iter().map(what));
            text += &format!(
                "{name:8} {:>7} {:>10.1} {:>12.1} {:>10.1} {:>10.1}\n",
                seconds.len(),
                of(|one| one.mb_per_s),
                of(|one| one.requests),
                of(|one| one.served),
                of(|one| one.failed),
            );
        }
        text += &match self.back_in() {
            Some(seconds) => format!("90 % of before: within second {seconds} after the burst\n"),
            None => "90 % of before: not reached\n".to_owned(),
        };
        if let Some(window) = &self.window {
            let (requests, ceiling) = (window.requests, window.ceiling);
            text += &format!(
                "window {requests} of {ceiling} at the end, shrunk {} times\n",
                window.shrinks()
            );
        }
        text
    }

    pub(super) fn json(&self) -> String {
        let phases = self.phases().map(|(name, seconds)| {
            let seconds = seconds.iter().map(|one| {
                format!(
                    "{{\"mb_per_s\":{:.3},\"requests_per_s\":{:.1},\"gets_per_s\":{:.1},\"failed_per_s\":{:.1}}}",
                    one.mb_per_s, one.requests, one.served, one.failed
                )
            });
            format!("\"{name}\":[{}]", seconds.collect::<Vec<_>>().join(","))
        });
        let back = self
            .back_in()
            .map_or("null".to_owned(), |seconds| seconds.to_string());
        format!(
            "{{\"schema\":1,\"simulated\":true,\"adaptive\":{},\"seconds_to_90_percent\":{back},{}}}",
            self.adaptive,
            phases.join(",")
        )
    }

    fn phases(&self) -> [(&'static str, &[Second]); 3] {
        [
            ("before", &self.before),
            ("during", &self.during),
            ("after", &self.after),
        ]
    }
}

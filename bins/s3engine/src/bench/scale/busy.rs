//! How busy this host's processors are, whoever uses them.

use std::fs;

/// Time of all processors since the host started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Busy {
    busy: u64,
    all: u64,
}

impl Busy {
    /// Until now; nothing where the kernel does not tell.
    pub(crate) fn now() -> Self {
        fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|stat| parse(&stat))
            .unwrap_or_default()
    }

    /// The share of the time since `earlier` in which processors were busy.
    pub(crate) fn since(&self, earlier: &Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        let busy = self.busy.saturating_sub(earlier.busy);
        match all {
            0 => 0.0,
            all => (busy as f64 / all as f64).min(1.0),
        }
    }
}

fn parse(stat: &str) -> Option<Busy> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Vec<u64> = line
        .split_whitespace()
        .map_while(|time| time.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; what guests used is in user already.
    let of_all = times.get(..8)?;
    let all: u64 = of_all.iter().sum();
    Some(Busy {
        busy: all - of_all[3] - of_all[4],
        all,
    })
}

/// Seconds that the threads of these processes were ready to run and waited for a processor, in their whole lives.
pub(crate) fn waited_for_processors(processes: &[u32]) -> f64 {
    let of_process = |id: &u32| {
        let threads = fs::read_dir(format!("/proc/{id}/task"))
            .into_iter()
            .flatten();
        threads.flatten().filter_map(|thread| {
            // Nanoseconds on a processor, nanoseconds of waiting for one, times.
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
    };
    let ns: u64 = processes.iter().flat_map(of_process).sum();
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_processors_is_that_of_living_processes() {
        let own = waited_for_processors(&[std::process::id()]);
        assert!(own >= 0.0 && own.is_finite());
        assert_eq!(waited_for_processors(&[u32::MAX]), 0.0);
    }

    #[test]
    fn idle_and_waiting_for_disks_is_not_busy() {
        let before = parse("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 1 1 1").unwrap();
        let after = parse("cpu  30 0 20 120 20 5 5 0 9 0\n").unwrap();
        assert_eq!(after.since(&before), 0.4);
        assert_eq!(before.since(&before), 0.0);
        assert_eq!(parse("cpu  1 2 3"), None);
        assert_eq!(parse(""), None);
    }
}

//! Calls that fail because the environment says so: `cuMemCreate=2@3,cuMemcpyHtoDAsync_v2=700@10-12`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::codes::{Answer, Code};

pub struct Faults(Vec<Fault>);

struct Fault {
    call: String,
    code: Code,
    /// The calls that fail, counted from 1.
    first: u64,
    last: u64,
    seen: AtomicU64,
}

impl Faults {
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim);
        let entries = entries.filter(|entry| !entry.is_empty());
        entries
            .map(Fault::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Counts one call of a name.
    pub fn count(&self, call: &str) -> Answer {
        let mut answer = Ok(());
        for fault in self.0.iter().filter(|fault| fault.call == call) {
            let number = fault.seen.fetch_add(1, Ordering::Relaxed) + 1;
            if (fault.first..=fault.last).contains(&number) {
                answer = answer.and(Err(fault.code));
            }
        }
        answer
    }
}

impl Fault {
    /// `name=code`, `name=code@n`: from the n-th call on, `name=code@n-m`: from the n-th to the m-th.
    fn parse(entry: &str) -> Result<Self, String> {
        let wrong = || format!("{entry:?} is not NAME=CODE, NAME=CODE@N or NAME=CODE@N-M");
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let (call, rest) = entry.split_once('=').ok_or_else(wrong)?;
        let (code, when) = rest.split_once('@').unwrap_or((rest, "1"));
        let (first, last) = match when.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(when)?, u64::MAX),
        };
        if !call.starts_with("cu") || first == 0 || last < first {
            return Err(wrong());
        }
        Ok(Self {
            call: call.to_owned(),
            code: code
                .parse()
                .ok()
                .map(Code)
                .filter(|code| code.is_error())
                .ok_or_else(wrong)?,
            first,
            last,
            seen: AtomicU64::new(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_that_were_named_fail_and_no_others() {
        let faults = Faults::parse("cuA=1, cuB=2@3, cuC=700@2-3, cuC=4@5").unwrap();
        let five = |call| -> Vec<u32> {
            let codes = (0..5).map(|_| faults.count(call).err().map_or(0, |code| code.0));
            codes.collect()
        };
        assert_eq!(five("cuA"), [1, 1, 1, 1, 1]);
        assert_eq!(five("cuB"), [0, 0, 2, 2, 2]);
        assert_eq!(five("cuC"), [0, 700, 700, 0, 4]);
        assert_eq!(five("cuD"), [0; 5]);
    }

    #[test]
    fn what_is_no_fault_is_named() {
        for text in [
            "cuA",
            "cuA=",
            "cuA=x",
            "cuA=0",
            "cuA=12345",
            "cuA=2@0",
            "cuA=2@3-2",
            "a=2",
            "cuA=2@",
        ] {
            let why = Faults::parse(text).err().unwrap();
            assert!(why.contains(text), "{why}");
        }
    }
}

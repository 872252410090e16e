//! What goes wrong.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A fault of one function.
#[derive(Debug)]
pub struct Fault {
    function: String,
    device: Option<String>,
    /// How many calls it has left.
    left: AtomicU64,
    what: What,
}

/// What a call does instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Fails with a code.
    Code(i32),
    /// Fails, in the library's words.
    Fails,
    /// Fails without a word.
    Silent,
    /// Takes so many milliseconds.
    Slow(u64),
    /// Does not return.
    Hangs,
    /// Ends the process as if all were well.
    Exits,
    /// Ends the process by a signal.
    Aborts,
    /// Returns nonsense.
    Garbage,
    /// Returns a text without an end.
    Endless,
}

impl Fault {
    /// What this call does instead, if the fault is of it.
    pub fn meets(&self, function: &str, device: &str) -> Option<What> {
        let is_of = self.function == function;
        let is_of = is_of && self.device.as_ref().is_none_or(|own| own == device);
        let take = |left: u64| left.checked_sub(1);
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        (is_of && self.left.fetch_update(set, fetch, take).is_ok()).then_some(self.what)
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no fault");
        let (call, what) = text.split_once('=').ok_or_else(wrong)?;
        let (call, left) = match call.split_once('#') {
            Some((call, count)) => (call, count.parse().map_err(|_| wrong())?),
            None => (call, u64::MAX),
        };
        let (function, device) = match call.split_once('@') {
            Some((function, device)) => (function, Some(device.to_owned())),
            None => (call, None),
        };
        let what = match what {
            "fails" => What::Fails,
            "silent" => What::Silent,
            "hangs" => What::Hangs,
            "exits" => What::Exits,
            "aborts" => What::Aborts,
            "garbage" => What::Garbage,
            "endless" => What::Endless,
            other => match other.strip_prefix("slow:") {
                Some(ms) => What::Slow(ms.parse().map_err(|_| wrong())?),
                None => What::Code(other.parse().map_err(|_| wrong())?),
            },
        };
        Ok(Self {
            function: function.to_owned(),
            device,
            left: AtomicU64::new(left),
            what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_of_a_function_a_device_and_so_many_calls() {
        let fault: Fault = "register@mlx5_1#2=12".parse().unwrap();
        assert_eq!(fault.meets("register", "mlx5_0"), None);
        assert_eq!(fault.meets("get_token", "mlx5_1"), None);
        assert_eq!(fault.meets("register", "mlx5_1"), Some(What::Code(12)));
        assert_eq!(fault.meets("register", "mlx5_1"), Some(What::Code(12)));
        assert_eq!(fault.meets("register", "mlx5_1"), None);
        for text in ["", "register", "register=often", "register#x=1", "a=slow:b"] {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }
}

//! What the environment asks for.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::faults::Faults;

pub struct Settings {
    /// The GPUs that this process sees, by their place in the host; an ordinal counts in here.
    pub visible: Vec<usize>,
    /// Bytes of memory of each.
    pub memory: u64,
    /// How long each asynchronous copy waits before it begins.
    pub delay: Duration,
    /// What the driver says of itself: 13000 is 13.0.
    pub version: u64,
    pub faults: Faults,
    /// Whether each call that is refused is told on standard error.
    pub tell: bool,
    /// Where processes tell each other how much they have.
    pub state: Option<PathBuf>,
}

impl Settings {
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let gpus = number(&variable, "S3ENGINE_STANDIN_GPUS", 2)?;
        if gpus > 16 {
            return Err(format!("S3ENGINE_STANDIN_GPUS: {gpus} are more than 16"));
        }
        let faults = variable("S3ENGINE_STANDIN_FAULTS").unwrap_or_default();
        let delay = number(&variable, "S3ENGINE_STANDIN_DELAY_US", 100)?;
        Ok(Self {
            visible: match variable("CUDA_VISIBLE_DEVICES") {
                Some(list) => visible(&list, gpus as usize),
                None => (0..gpus as usize).collect(),
            },
            memory: number(&variable, "S3ENGINE_STANDIN_MEMORY", 1 << 30)?,
            delay: Duration::from_micros(delay),
            version: number(&variable, "S3ENGINE_STANDIN_VERSION", 13000)?,
            faults: Faults::parse(&faults)
                .map_err(|why| format!("S3ENGINE_STANDIN_FAULTS: {why}"))?,
            tell: number(&variable, "S3ENGINE_STANDIN_TELL", 0)? != 0,
            state: variable("S3ENGINE_STANDIN_STATE").map(PathBuf::from),
        })
    }
}

fn number(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
    default: u64,
) -> Result<u64, String> {
    let Some(text) = variable(name) else {
        return Ok(default);
    };
    let number = text.parse();
    number.map_err(|_| format!("{name}: {text:?} is no number"))
}

/// The driver's rule: what stands before the first entry that names no GPU is seen; none at all where one is named
/// twice.
fn visible(list: &str, gpus: usize) -> Vec<usize> {
    let named = list.split(',').map_while(|entry| named(entry.trim(), gpus));
    let seen: Vec<usize> = named.collect();
    let distinct: HashSet<_> = seen.iter().collect();
    match distinct.len() == seen.len() {
        true => seen,
        false => Vec::new(),
    }
}

/// By number, or by the beginning of one UUID.
fn named(entry: &str, gpus: usize) -> Option<usize> {
    if entry.starts_with("GPU-") {
        let mut fits = (0..gpus).filter(|gpu| uuid_text(*gpu).starts_with(entry));
        let first = fits.next();
        return first.filter(|_| fits.next().is_none());
    }
    entry.parse().ok().filter(|gpu| *gpu < gpus)
}

/// The UUID of a GPU: the same in every process, and told apart by its first digit.
pub fn uuid(gpu: usize) -> [u8; 16] {
    let mut uuid = *b"?CUDA stand-in \0";
    uuid[0] = (gpu as u8) << 4 | 0xd;
    uuid[15] = gpu as u8;
    uuid
}

pub fn uuid_text(gpu: usize) -> String {
    let digits: Vec<String> = uuid(gpu).iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |range: std::ops::Range<usize>| digits[range].concat();
    let parts = [
        part(0..4),
        part(4..6),
        part(6..8),
        part(8..10),
        part(10..16),
    ];
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_are_what_the_driver_would_see() {
        for (list, seen) in [
            ("", vec![]),
            ("1", vec![1]),
            ("1,0", vec![1, 0]),
            (" 2 , 0", vec![2, 0]),
            ("0,7,1", vec![0]),
            ("-1", vec![]),
            ("0,x,1", vec![0]),
            ("1,1", vec![]),
            ("GPU-1d,GPU-0d", vec![1, 0]),
            ("GPU-", vec![]),
            ("GPU-ff,0", vec![]),
        ] {
            assert_eq!(visible(list, 3), seen, "{list:?}");
        }
        assert_eq!(visible(&uuid_text(2), 3), [2]);
        assert_eq!(visible("GPU-", 1), [0], "one GPU needs no more");
    }

    #[test]
    fn what_is_no_number_is_named() {
        let settings = |name: &'static str, value: &'static str| {
            Settings::read(move |asked| (asked == name).then(|| value.to_owned()))
        };
        let why = |name, value| settings(name, value).err().unwrap();
        assert!(why("S3ENGINE_STANDIN_GPUS", "two").contains("\"two\" is no number"));
        assert!(why("S3ENGINE_STANDIN_GPUS", "17").contains("more than 16"));
        assert!(why("S3ENGINE_STANDIN_FAULTS", "cuInit").contains("FAULTS"));
        let one = settings("S3ENGINE_STANDIN_GPUS", "1").ok().unwrap();
        assert_eq!((one.visible, one.memory), (vec![0], 1 << 30));
    }
}

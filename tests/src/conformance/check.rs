//! Whether what a case came to is what was expected, in all that a caller can see.

use std::panic::{AssertUnwindSafe, catch_unwind};

use s3engine::{Buffer, BytesByPath, Completion, Flags, Memory, Path, Policy, Reason};
use s3engine_pool::SlotId;
use s3sim::content;

use super::case::{Case, Destination, FORBIDDEN, Shape};
use super::expect::{Carried, Doubt, End, Expected};
use crate::assert_invariants;
use crate::watch::{contents, is_untouched};

/// What a case came to.
pub struct Seen {
    /// Its slot, where the caller gave one.
    pub given: Option<SlotId>,
    /// Completions before the last one; `None` where nobody hears of them.
    pub news: Option<Vec<News>>,
    /// The last one.
    pub end: Facts,
    /// The buffer that came back with it.
    pub back: Option<Buffer>,
}

/// What a completion tells that announces another one.
#[derive(Clone, Copy, Debug)]
pub struct News {
    /// Why the GET waits.
    pub reason: Reason,
    /// Its flags.
    pub flags: Flags,
}

/// What a completion tells, short of the buffer.
#[derive(Debug)]
pub struct Facts {
    path: Path,
    reason: Reason,
    flags: Flags,
    by_path: BytesByPath,
    size: Option<u64>,
    status: Option<u16>,
    fallback: Option<Reason>,
    /// Bytes that can be seen: where they are, for those of a device.
    seen: Option<u64>,
    error: Option<String>,
}

impl Facts {
    /// Of a completion.
    pub fn of(completion: &Completion) -> Self {
        Self {
            path: completion.path(),
            reason: completion.reason(),
            flags: completion.flags(),
            by_path: completion.bytes_by_path(),
            size: completion.info().size,
            status: completion.status(),
            fallback: completion.fallback().map(|fallback| fallback.reason),
            seen: completion.buffer().map(|_| completion.bytes()),
            error: completion.error().map(ToString::to_string),
        }
    }
}

/// What a completion says against itself or its policy, if it does.
pub fn contradiction(completion: &Completion, policy: Policy) -> Option<String> {
    let checked = AssertUnwindSafe(|| assert_invariants(completion, policy));
    let panic = catch_unwind(checked).err()?;
    let text = panic.downcast_ref::<String>().map(String::as_str);
    Some(format!("breaks an invariant: {}", text.unwrap_or("?")))
}

/// What is wrong, if anything is: compared with the nearest of the expected ends.
pub fn judge(case: &Case, expected: &[Expected], seen: &Seen) -> Option<String> {
    let wrongs = expected
        .iter()
        .map(|expected| (expected, wrongs(case, expected, seen)));
    let (nearest, wrongs) = wrongs.min_by_key(|(_, wrongs)| wrongs.len())?;
    (!wrongs.is_empty()).then(|| {
        let (wrongs, others) = (wrongs.join(", "), expected.len() - 1);
        let Seen { end, news, .. } = seen;
        format!("{wrongs}: expected {nearest:?} (or {others} others), saw {end:?}, news {news:?}")
    })
}

/// All in which a case differs from one expected end.
fn wrongs(case: &Case, expected: &Expected, seen: &Seen) -> Vec<String> {
    let end = &seen.end;
    let mut wrongs = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            wrongs.push(what.to_owned());
        }
    };
    let (path, reason, carried) = match expected.end {
        End::Bytes(path, reason, carried) => (path, reason, Some(carried)),
        End::Nothing => (Path::None, Reason::Ok, None),
        End::Failure(reason) => (Path::None, reason, None),
    };
    let failed = matches!(expected.end, End::Failure(_));
    must(
        end.status != Some(FORBIDDEN),
        "a request that the policy forbids",
    );
    must(end.path == path, "another path");
    must(end.reason == reason, "another reason");
    must(end.error.is_some() == failed, "not this success or failure");
    must(
        end.fallback == expected.fallback,
        "another reason of a fallback",
    );
    must(counts(case, carried, end), "another number of bytes");
    must(flags(case, expected, seen) == shown(seen), "other flags");
    must(news(case, expected, seen), "not the news expected");
    if let Err(wrong) = buffer(case, expected, seen) {
        must(false, wrong);
    }
    if carried.is_some()
        && let Err(wrong) = content(case, seen)
    {
        must(false, &wrong);
    }
    wrongs
}

/// Bytes by path.
fn counts(case: &Case, carried: Option<Carried>, end: &Facts) -> bool {
    let by_path = end.by_path;
    let (rdma, http) = (by_path.rdma, by_path.http);
    let all = case.shape.delivered().1;
    by_path.cache == 0
        && match carried {
            None => (rdma, http) == (0, 0),
            Some(Carried::Rdma) => (rdma, http) == (all, 0),
            Some(Carried::Http) => (rdma, http) == (0, all),
            Some(Carried::Both) => rdma > 0 && http > 0 && rdma + http == all,
        }
}

/// The flags as they must be.
fn flags(case: &Case, expected: &Expected, seen: &Seen) -> Flags {
    let mut flags = Flags::empty();
    let reasons = [expected.fallback, Some(seen.end.reason)];
    let registration = reasons.contains(&Some(Reason::RegistrationFailed));
    flags.set(Flags::REG_FAILED, registration);
    if let End::Bytes(path, _, carried) = expected.end {
        let intended = path == Path::Http && expected.fallback.is_none();
        let unseen = carried != Carried::Http && case.shape.delivered().1 > 0;
        flags.set(Flags::FELL_BACK, expected.fallback.is_some());
        flags.set(Flags::HTTP_INTENDED, intended);
        flags.set(Flags::NOT_VERIFIED, unseen);
        flags.set(Flags::PARTIAL, case.shape == Shape::Reaching);
        let by_http = carried != Carried::Rdma && case.shape.delivered().1 > 0;
        flags.set(Flags::STAGED, by_http && case.memory != Memory::Host);
    }
    let moved = slots(seen).is_some_and(|(given, back)| given != back);
    flags.set(Flags::MOVED, moved);
    flags
}

/// The flags as they are. Whether a slot is another one is only told of a slot that comes back.
fn shown(seen: &Seen) -> Flags {
    match slots(seen) {
        Some(_) => seen.end.flags,
        None => seen.end.flags - Flags::MOVED,
    }
}

/// The slot that was given and the one that came back.
fn slots(seen: &Seen) -> Option<(SlotId, SlotId)> {
    seen.given.zip(seen.back.as_ref().map(Buffer::slot))
}

/// A caller who fixed the destination hears, once, that it is waited for; others hear nothing.
fn news(case: &Case, expected: &Expected, seen: &Seen) -> bool {
    let Some(news) = &seen.news else { return true };
    if case.into != Destination::Fixed || expected.doubt == Doubt::Never {
        return news.is_empty();
    }
    let [news] = &news[..] else { return false };
    let why = match expected.end {
        _ if expected.fallback.is_some() => expected.fallback,
        End::Failure(reason) if expected.doubt != Doubt::Before => Some(reason),
        // A first attempt by RDMA, of which nothing else tells.
        _ => None,
    };
    news.flags == Flags::MORE
        && match why {
            Some(why) => news.reason == why,
            None => news.reason.is_of_rdma(),
        }
}

/// The buffer comes back where it may, and is the one that it must be.
fn buffer(case: &Case, expected: &Expected, seen: &Seen) -> Result<(), &'static str> {
    let failed = matches!(expected.end, End::Failure(_));
    let same = slots(seen).map(|(given, back)| given == back);
    let fits = match (case.into, expected.doubt) {
        (Destination::Leased, Doubt::Last | Doubt::Lost) => seen.back.is_none(),
        (Destination::Leased, _) => failed || seen.back.is_some(),
        (Destination::Given, Doubt::Never) => same == Some(true),
        (Destination::Given, Doubt::Before) => same == Some(false),
        (Destination::Given, Doubt::Last | Doubt::Lost) => same.is_none(),
        (Destination::Fixed, Doubt::Lost) => same.is_none(),
        (Destination::Fixed, _) => same == Some(true),
    };
    fits.then_some(())
        .ok_or("not the buffer that must come back")
}

/// The bytes are the object's, of one version, and nothing behind them was written.
fn content(case: &Case, seen: &Seen) -> Result<(), String> {
    let (offset, len) = case.shape.delivered();
    let all = seen.back.as_ref().map(contents);
    let data = seen
        .end
        .seen
        .zip(all.as_ref())
        .and_then(|(len, all)| all.split_at_checked(len as usize));
    let (data, rest) = data.ok_or("no bytes to see")?;
    if data.len() as u64 != len {
        return Err(format!("{} bytes, not {len}", data.len()));
    }
    if seen.end.size != case.shape.size() {
        return Err("an object of another size".into());
    }
    // As many versions as there are requests, at most.
    let right = |version| content::verify(&case.key, version, offset, data);
    if !case.fault.lies && !(0..8).any(|version| right(version).is_ok()) {
        let wrong = right(0).err().map(|wrong| wrong.to_string());
        return Err(format!(
            "bytes of no version: {}",
            wrong.unwrap_or_default()
        ));
    }
    if slots(seen).is_some_and(|(given, back)| given == back) && !is_untouched(rest) {
        return Err("bytes behind the object were written".into());
    }
    Ok(())
}

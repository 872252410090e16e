//! What must come of a case: from the policy, what the host knows of fabrics, and the line of the fault.
//!
//! This is the second telling of the rules, on purpose in other terms than the engine's: it knows no rounds,
//! attempts or windows. Where timing decides, several ends are allowed.

use s3engine::{Path, Policy, Reason};
use s3sim::Kind;

use super::case::{Case, Shape};
use super::fault::{Answer, When};
use super::host::{FabricIs, THRESHOLD};

/// What must come of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// How it ends.
    pub end: End,
    /// Why RDMA, which was wanted, did not carry all bytes.
    pub fallback: Option<Reason>,
    /// Whether a remote may have been left writing to its memory.
    pub doubt: Doubt,
}

/// How a GET ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With the object's bytes, by this path for this reason; carried by these.
    Bytes(Path, Reason, Carried),
    /// With nothing, since nothing was to be fetched.
    Nothing,
    /// With an error.
    Failure(Reason),
}

/// What carried the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// RDMA all of them.
    Rdma,
    /// HTTP all of them.
    Http,
    /// Each some.
    Both,
}

/// Whether a remote may have been left writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// At no time.
    Never,
    /// To memory that was left for other memory.
    Before,
    /// To the memory that the GET ended with.
    Last,
    /// To memory of which nobody confirms that it is safe again.
    Lost,
}

/// The ends that are allowed, at least one.
pub fn expect(case: &Case, fabric: FabricIs) -> Vec<Expected> {
    if case.shape == Shape::NoBytes {
        return vec![Expected::clean(End::Nothing)];
    }
    if case.begins_with_head() {
        match hit(case, Kind::Head) {
            Some((Answer::Busy, When::Always)) => return failures(&[Reason::HttpError]),
            Some((Answer::Final(reasons), _)) => return failures(reasons),
            Some((Answer::Ended(reason), _)) => return failures(&[reason]),
            _ if case.shape == Shape::Missing => return failures(&[Reason::HttpError]),
            _ if case.shape == Shape::Empty => return vec![Expected::clean(End::Nothing)],
            _ => {}
        }
    }
    let small = case.shape == Shape::Small;
    const { assert!(THRESHOLD > 3_001 + super::case::SPARE) };
    match (case.policy, fabric) {
        (Policy::Http, _) => by_http(case, Why::Intended(Reason::Policy)),
        (Policy::RequireRdma, FabricIs::Ready) => by_rdma(case),
        (Policy::RequireRdma, FabricIs::Broken) => failures(&[Reason::FabricInitFailed]),
        (Policy::RequireRdma, _) => failures(&[Reason::NoFabric]),
        (Policy::PreferRdma, FabricIs::Off) => by_http(case, Why::Intended(Reason::Policy)),
        (Policy::PreferRdma, _) if small => by_http(case, Why::Intended(Reason::BelowThreshold)),
        (Policy::PreferRdma, FabricIs::Ready) => by_rdma(case),
        (Policy::PreferRdma, FabricIs::Broken) => fallen_back(case, Reason::FabricInitFailed),
        (Policy::PreferRdma, FabricIs::NotFound) => fallen_back(case, Reason::NoFabric),
    }
}

/// What the fault does to requests of a kind, and to which of them.
fn hit(case: &Case, kind: Kind) -> Option<(Answer, When)> {
    let fault = &case.fault;
    let answer = match kind {
        Kind::Rdma => fault.rdma,
        Kind::Http => fault.http,
        _ => fault.head,
    };
    let shown = !fault.needs_bytes.contains(&kind) || case.shape.delivered().1 > 0;
    (answer != Answer::Honest && shown).then_some((answer, case.when))
}

fn by_rdma(case: &Case) -> Vec<Expected> {
    let mut ends = answered_by_rdma(case, hit(case, Kind::Rdma));
    if case.fault.hangs_up {
        // Its request may meet the end of a connection.
        for when in [When::Once, When::Always] {
            let lost = (Answer::Doubt(Reason::RdmaError), when);
            ends.extend(answered_by_rdma(case, Some(lost)));
        }
    }
    ends
}

fn answered_by_rdma(case: &Case, hit: Option<(Answer, When)>) -> Vec<Expected> {
    let required = case.policy == Policy::RequireRdma;
    let delivered = || match case.shape.is_refused() {
        true => End::Failure(Reason::HttpError),
        false => End::Bytes(Path::Rdma, Reason::Ok, Carried::Rdma),
    };
    match hit {
        None | Some((Answer::Honest, _)) => vec![Expected::clean(delivered())],
        Some((Answer::FabricFailed(_) | Answer::Busy, When::Once | When::Later)) if required => {
            vec![Expected::clean(delivered())]
        }
        Some((Answer::Declined(reason) | Answer::FabricFailed(reason), _)) if required => {
            failures(&[reason])
        }
        Some((Answer::Declined(reason) | Answer::FabricFailed(reason), when)) => {
            let http = by_http(case, Why::Declined(reason, Carried::Http));
            let both = by_http(case, Why::Declined(reason, Carried::Both));
            match when {
                When::Later if case.shape.is_of_parts() => both,
                // What the first part comes to may decide for all of them.
                When::Once if case.shape.is_of_parts() => [http, both].concat(),
                _ => http,
            }
        }
        Some((Answer::Doubt(reason), _)) if case.is_lost_in_doubt() => {
            vec![Expected::doubted(End::Failure(reason), Doubt::Lost)]
        }
        Some((Answer::Doubt(reason), When::Always)) if required => {
            vec![Expected::doubted(End::Failure(reason), Doubt::Last)]
        }
        Some((Answer::Doubt(_), _)) if required => {
            vec![Expected::doubted(delivered(), Doubt::Before)]
        }
        // Other memory, and all of it anew.
        Some((Answer::Doubt(reason), _)) => by_http(case, Why::Doubted(reason)),
        Some((Answer::Busy, When::Always)) => failures(&[Reason::HttpError]),
        Some((Answer::Busy, _)) => vec![Expected::clean(delivered())],
        Some((Answer::Final(reasons) | Answer::Garbled(reasons), _)) => failures(reasons),
        Some((Answer::Changed, when)) if is_mixed(case, when) => failures(&[Reason::Modified]),
        Some((Answer::Changed, _)) => vec![Expected::clean(delivered())],
        Some((Answer::Ended(reason), _)) => ended(reason),
    }
}

/// By the time of a deadline the request may not have been sent yet; a cancel comes after that.
fn ended(reason: Reason) -> Vec<Expected> {
    let in_doubt = Expected::doubted(End::Failure(reason), Doubt::Last);
    match reason {
        Reason::Cancelled => vec![in_doubt],
        _ => [vec![in_doubt], failures(&[reason])].concat(),
    }
}

/// Whether a GET would be given parts of two versions: its version is known before the swap.
fn is_mixed(case: &Case, when: When) -> bool {
    let known_before = case.begins_with_head();
    let several = case.shape.is_of_parts() && when != When::Once;
    case.shape.delivered().1 > 0 && (known_before || several)
}

/// Why a GET goes by HTTP.
#[derive(Clone, Copy)]
enum Why {
    Intended(Reason),
    /// RDMA was wanted and not tried, or was declined.
    Declined(Reason, Carried),
    /// RDMA was left in doubt.
    Doubted(Reason),
}

fn fallen_back(case: &Case, reason: Reason) -> Vec<Expected> {
    by_http(case, Why::Declined(reason, Carried::Http))
}

fn by_http(case: &Case, why: Why) -> Vec<Expected> {
    let (reason, carried) = match why {
        Why::Intended(reason) | Why::Doubted(reason) => (reason, Carried::Http),
        Why::Declined(reason, carried) => (reason, carried),
    };
    let with = |end| Expected {
        end,
        fallback: match why {
            Why::Intended(_) => None,
            _ => Some(reason),
        },
        doubt: match why {
            Why::Doubted(_) => Doubt::Before,
            _ => Doubt::Never,
        },
    };
    let failed = |reasons: &[Reason]| reasons.iter().map(|&r| with(End::Failure(r))).collect();
    let delivered = match case.shape.is_refused() {
        true => End::Failure(Reason::HttpError),
        false => End::Bytes(Path::Http, reason, carried),
    };
    match hit(case, Kind::Http) {
        Some((Answer::Busy, When::Always)) => failed(&[Reason::HttpError]),
        Some((Answer::Final(reasons), _)) => failed(reasons),
        Some((Answer::Garbled(reasons), When::Always)) => failed(reasons),
        Some((Answer::Garbled(reasons), _)) => [failed(reasons), vec![with(delivered)]].concat(),
        Some((Answer::Changed, when)) if is_mixed(case, when) => failed(&[Reason::Modified]),
        Some((Answer::Ended(reason), _)) => failed(&[reason]),
        _ => vec![with(delivered)],
    }
}

fn failures(reasons: &[Reason]) -> Vec<Expected> {
    let failure = |&reason| Expected::clean(End::Failure(reason));
    reasons.iter().map(failure).collect()
}

impl Expected {
    fn clean(end: End) -> Self {
        Self {
            end,
            fallback: None,
            doubt: Doubt::Never,
        }
    }

    fn doubted(end: End, doubt: Doubt) -> Self {
        Self {
            doubt,
            ..Self::clean(end)
        }
    }
}

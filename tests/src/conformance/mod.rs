//! The conformance suite: what every host and every fabric is held to.
//!
//! ```text
//! fault ── one line a fault: what the server does, what that means for one request
//!   │
//! case ─── policy x fault x which requests x shape x destination: one GET, with a key of its own
//!   ├───── expect: what must come of it, from the rules of policies and reasons
//! session  a host over a simulator: cases in batches through one queue, or awaited
//!   └───── check: the completion, its news, its buffer and bytes, against what was expected
//! ```
//!
//! Each case is checked for all invariants of a completion (see [`assert_invariants`](crate::assert_invariants)), and
//! beyond them: the very path, reason, flags and bytes by path; one end, one announcement at most before it; the
//! buffer that must come back; bytes of one version, and nothing written behind them. Buffers that came back are
//! filled anew and watched until no server writes any more; then all memory must be back in the pool.
//!
//! A host joins by one line: `conformance!(embedded_loopback => Embedded::with_loopback());`, and with buffers on a CUDA
//! device by `conformance!(... => IntoCuda::new(...), with_standin);`.

mod case;
mod check;
mod expect;
mod fault;
mod host;
mod session;

pub use host::{
    Embedded, FabricIs, Host, IntoCuda, LATE, PART, Running, SILENCE, Served, Site, THRESHOLD,
    Tempo,
};
pub use session::{Session, Tally};

use std::thread;

use s3sim::{Action, Kind};

use crate::Failure;
use case::{Case, Shape};
use fault::{Fault, When};

/// Makes the suite's tests for a host, each run where it is or by a function of yours.
#[macro_export]
macro_rules! conformance {
    ($name:ident => $host:expr) => {
        $crate::conformance!($name => $host, $crate::conformance::here);
    };
    ($name:ident => $host:expr, $run:path) => {
        mod $name {
            use super::*;

            #[test]
            fn every_policy_meets_every_refusal_of_rdma() {
                $run(|| $crate::conformance::refusals_of_rdma(&$host));
            }

            #[test]
            fn every_policy_meets_every_trouble_of_rdma() {
                $run(|| $crate::conformance::troubles_of_rdma(&$host));
            }

            #[test]
            fn every_policy_meets_every_trouble_of_http() {
                $run(|| $crate::conformance::troubles_of_http(&$host));
            }

            #[test]
            fn every_policy_meets_troubles_of_both() {
                $run(|| $crate::conformance::troubles_of_both(&$host));
            }

            #[test]
            fn silence_after_a_token_ends_in_time_and_late_writes_reach_nobody() {
                $run(|| $crate::conformance::silences_of_rdma(&$host));
            }

            #[test]
            fn silence_ends_in_time() {
                $run(|| $crate::conformance::silences_of_http(&$host));
            }

            #[test]
            fn a_get_that_is_ended_ends_at_once_and_says_so() {
                $run(|| $crate::conformance::ended(&$host));
            }

            #[test]
            fn a_fabric_that_fails_is_never_taken_for_another_cause() {
                $run(|| $crate::conformance::failing_fabrics(&$host));
            }

            #[test]
            fn awaited_gets_end_as_queued_ones_do() {
                $run(|| $crate::conformance::awaited(&$host));
            }
        }
    };
}

/// Runs a test where it is.
pub fn here(test: impl FnOnce()) {
    test();
}

/// What servers answer to tokens, short of delivering; and nothing at all going wrong.
pub fn refusals_of_rdma(host: &dyn Host) {
    answered(
        host,
        [vec![Fault::none()], fault::refusals_of_rdma()].concat(),
    );
}

/// What else happens to requests with tokens.
pub fn troubles_of_rdma(host: &dyn Host) {
    answered(host, fault::troubles_of_rdma());
}

/// What happens to plain GETs.
pub fn troubles_of_http(host: &dyn Host) {
    answered(host, fault::troubles_of_http());
}

/// What happens to HEAD, to every request, and by RDMA and HTTP one after the other.
pub fn troubles_of_both(host: &dyn Host) {
    answered(host, fault::troubles_of_both());
}

/// Servers that say nothing for longer than the host waits: to requests with tokens.
pub fn silences_of_rdma(host: &dyn Host) {
    silences(host, fault::silences_of_rdma());
}

/// The same, to HEAD and plain GETs.
pub fn silences_of_http(host: &dyn Host) {
    silences(host, fault::silences_of_http());
}

fn silences(host: &dyn Host, faults: Vec<Fault>) {
    let Some(faults) = applicable(host, faults) else {
        return;
    };
    // Most of the time is spent waiting. All at once, honest requests might have to wait too.
    for pair in faults.chunks(2) {
        thread::scope(|scope| {
            for fault in pair {
                scope.spawn(|| silence(host, fault));
            }
        });
    }
}

fn silence(host: &dyn Host, fault: &Fault) {
    let mut session = open(host, Tempo::Brisk);
    let mut cases = Case::all_of(fault, host.memory());
    // Enough to show it.
    cases.retain(|case| !matches!(case.shape, Shape::Range | Shape::Reaching | Shape::Beyond));
    session.run(&cases);
    session.finish();
}

/// Callers who cancel, or have a deadline.
pub fn ended(host: &dyn Host) {
    let mut session = open(host, Tempo::Patient);
    for fault in fault::ends() {
        session.run(&Case::all_of(&fault, host.memory()));
    }
    session.finish();
}

/// Fabrics that register nothing, make no tokens or forged ones, or never confirm a revocation.
pub fn failing_fabrics(host: &dyn Host) {
    for (failure, fault) in fault::failures_of_the_fabric() {
        let Some(mut session) = Session::open(host, Tempo::Patient, Some(failure)) else {
            return;
        };
        session.run(&Case::all_of(&fault, host.memory()));
        session.finish();
    }
    let unconfirmed = Session::open(host, Tempo::Patient, Some(Failure::Revoke));
    let Some(mut session) = unconfirmed else {
        return;
    };
    // One by one: each takes a whole slab along.
    for case in Case::all_of(&fault::unconfirmed(), host.memory()) {
        if matches!(case.shape, Shape::Whole | Shape::Parts) {
            session.run(&[case]);
        }
    }
    session.finish();
}

/// A part of the matrix, with futures instead of a queue.
pub fn awaited(host: &dyn Host) {
    let mut session = open(host, Tempo::Patient);
    for fault in some_of_all(host) {
        let mut cases = Case::all_of(&fault, host.memory());
        cases.retain(|case| case.when == When::Always && case.shape != Shape::Small);
        session.run_awaited(&cases);
    }
    session.finish();
}

/// What completions told of a part of the matrix with every path and many reasons, for a comparison with what
/// was counted.
pub fn told(host: &dyn Host) -> Tally {
    let mut session = open(host, Tempo::Patient);
    for fault in some_of_all(host) {
        let mut cases = Case::all_of(&fault, host.memory());
        cases.retain(|case| case.when != When::Always || case.shape == Shape::Whole);
        session.run(&cases);
    }
    session.finish()
}

/// Faults with every kind of end.
fn some_of_all(host: &dyn Host) -> Vec<Fault> {
    let faults = [
        vec![Fault::none()],
        fault::refusals_of_rdma(),
        fault::troubles_of_both(),
    ];
    applicable(host, faults.concat()).unwrap_or_default()
}

/// Whether late writes are seen at all: what a fabric that only claims to revoke violates.
pub fn violations_of_false_revocation(host: &dyn Host) -> Vec<String> {
    let session = Session::open(host, Tempo::Brisk, Some(Failure::ClaimRevoked));
    let Some(mut session) = session else {
        return Vec::new();
    };
    let late = fault::silences_of_rdma()
        .into_iter()
        .find(Fault::writes_late);
    session.run(&Case::all_of(&late.expect("there is one"), host.memory()));
    session.violations().to_vec()
}

fn answered(host: &dyn Host, faults: Vec<Fault>) {
    let Some(faults) = applicable(host, faults) else {
        return;
    };
    let mut session = open(host, Tempo::Patient);
    for fault in faults {
        let cases = Case::all_of(&fault, host.memory());
        // Few rules at a time: the simulator looks through all of them for each request.
        for cases in cases.chunk_by(|a, b| a.policy == b.policy) {
            session.run(cases);
        }
    }
    session.finish();
}

fn open(host: &dyn Host, tempo: Tempo) -> Session {
    Session::open(host, tempo, None).expect("a host can do without failures")
}

/// The faults that a host can meet: without a fabric there are no requests with tokens. `None`, said aloud: it can
/// meet none of them.
fn applicable(host: &dyn Host, mut faults: Vec<Fault>) -> Option<Vec<Fault>> {
    let ready = host.fabric() == FabricIs::Ready;
    faults.retain(|fault| {
        let of_rdma = |(kind, _): &(Kind, Action)| *kind == Kind::Rdma;
        ready || fault.rules.is_empty() || !fault.rules.iter().all(of_rdma)
    });
    if faults.is_empty() {
        eprintln!("skipped: {} makes no requests with tokens", host.name());
        return None;
    }
    Some(faults)
}

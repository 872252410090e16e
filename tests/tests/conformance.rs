//! Every policy meets every fault, in every shape, into every kind of destination: see
//! `s3engine_tests::conformance`. Each host is one line.

use s3engine_tests::conformance;
use s3engine_tests::conformance::{Embedded, Served};

conformance!(embedded_loopback => Embedded::with_loopback());
conformance!(embedded_without_fabric => Embedded::without_fabric());
conformance!(served_loopback => Served::with_loopback());
conformance!(served_without_fabric => Served::without_fabric());

#[test]
fn a_fabric_that_is_off_or_broken_is_told_from_one_that_is_not_there() {
    for host in [Embedded::switched_off(), Embedded::with_broken_fabric()] {
        conformance::refusals_of_rdma(&host);
        conformance::troubles_of_both(&host);
    }
}

#[test]
fn late_writes_are_seen_where_a_fabric_only_claims_to_revoke() {
    let seen = conformance::violations_of_false_revocation(&Embedded::with_loopback());
    // Which memory a write reaches depends on how fast the batch was.
    let seen_to_write = |line: &String| {
        line.contains("was written after it came back") || line.contains("reached free memory")
    };
    assert!(seen.iter().any(seen_to_write), "{seen:?}");
}

//! The conformance suite with buffers on a CUDA device: as in `conformance`, but for memory that the engine leases, which
//! is the host's.

use cuda_standin::with_standin;
use s3engine_tests::conformance;
use s3engine_tests::conformance::{Embedded, IntoCuda, Served};

conformance!(embedded_loopback => IntoCuda::new(Embedded::with_loopback()), with_standin);
conformance!(served_loopback => IntoCuda::new(Served::with_loopback()), with_standin);

#[test]
fn where_rdma_is_not_to_be_had_for_whatever_cause_bytes_are_staged() {
    with_standin(|| {
        for engine in [
            Embedded::without_fabric(),
            Embedded::switched_off(),
            Embedded::with_broken_fabric(),
        ] {
            let host = IntoCuda::new(engine);
            conformance::refusals_of_rdma(&host);
            conformance::troubles_of_both(&host);
        }
        let host = IntoCuda::new(Served::without_fabric());
        conformance::refusals_of_rdma(&host);
        conformance::troubles_of_http(&host);
        conformance::ended(&host);
    });
}

#[test]
fn late_writes_are_seen_where_a_fabric_only_claims_to_revoke() {
    with_standin(|| {
        let host = IntoCuda::new(Embedded::with_loopback());
        let seen = conformance::violations_of_false_revocation(&host);
        // Which memory a write reaches depends on how fast the batch was.
        let seen_to_write = |line: &String| {
            line.contains("was written after it came back") || line.contains("reached free memory")
        };
        assert!(seen.iter().any(seen_to_write), "{seen:?}");
    });
}

//! As `invariants`, with buffers in the memory of CUDA devices among the others.

use cuda_standin::with_standin;
use s3engine::Memory;
use s3engine_tests::any_faults_under_any_policy;

#[test]
fn completions_are_consistent_wherever_the_bytes_go() {
    with_standin(|| {
        let device = Memory::cuda(0).unwrap();
        any_faults_under_any_policy(&[Memory::Host, device, device]);
    });
}

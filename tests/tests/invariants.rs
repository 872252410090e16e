//! Any fault under any policy, in any order: every completion tells one consistent story, and no success
//! has wrong bytes.

use s3engine::Memory;
use s3engine_tests::any_faults_under_any_policy;

#[test]
fn completions_are_consistent_whatever_the_faults_and_policies() {
    any_faults_under_any_policy(&[Memory::Host]);
}

//! The ABI of the rings has a number for every name that a completion can carry.

use s3engine::{Path, Reason};
use s3engine_ring::{path_code, path_name, reason_code, reason_name};

#[test]
fn every_path_and_reason_has_a_code_of_its_own() {
    for path in Path::ALL {
        let code = path_code(path.as_str()).unwrap_or_else(|| panic!("{path} has no code"));
        assert_eq!(path_name(code), Some(path.as_str()));
    }
    for reason in Reason::ALL {
        let code = reason_code(reason.as_str()).unwrap_or_else(|| panic!("{reason} has no code"));
        assert_eq!(reason_name(code), Some(reason.as_str()));
    }
}

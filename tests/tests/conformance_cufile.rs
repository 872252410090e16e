//! The conformance suite through the fabric of NVIDIA's library, over a stand-in for it.

use s3engine_tests::conformance;
use s3engine_tests::conformance::{Embedded, Served};

const PROBER: &str = env!("CARGO_BIN_EXE_prober");

conformance!(embedded_cufile => Embedded::with_cufile(PROBER));
conformance!(served_cufile => Served::with_cufile(PROBER));

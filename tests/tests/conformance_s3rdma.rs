//! The conformance suite through the fabric of MinIO's library, over a stand-in for it.

use s3engine_tests::conformance;
use s3engine_tests::conformance::{Embedded, Served};

conformance!(embedded_s3rdma => Embedded::with_s3rdma());
conformance!(served_s3rdma => Served::with_s3rdma());

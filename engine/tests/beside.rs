//! Engines for several endpoints of one host.
#![allow(missing_docs)]

use s3engine::{Endpoint, Engine, EngineBuilder, Memory, PoolOptions, Rdma};

fn describe(url: &str) -> EngineBuilder {
    let endpoint = Endpoint::parse(url).unwrap();
    Engine::builder(endpoint).rdma(Rdma::Off).threads(1)
}

#[test]
fn engines_beside_each_other_have_one_pool_and_outlive_each_other() {
    let pool = PoolOptions {
        slab_bytes: 2 << 20,
        max_bytes: Some(4 << 20),
        ..PoolOptions::default()
    };
    let first = describe("http://127.0.0.1:1").pool(pool).build().unwrap();
    let second = describe("http://127.0.0.1:2")
        .beside(&first)
        .build()
        .unwrap();
    let buffer = first.pool().try_alloc(1 << 20, Memory::Host).unwrap();
    let stats = second.pool().stats();
    assert_eq!((stats.max_bytes, stats.leased), (4 << 20, 1 << 20));
    assert_eq!(second.endpoint().to_string(), "http://127.0.0.1:2");
    drop(first);
    assert!(second.pool().try_alloc(1 << 20, Memory::Host).is_ok());
    assert_eq!(buffer.as_slice().map(<[u8]>::len), Some(1 << 20));
}

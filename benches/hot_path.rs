//! What every GET passes through, piece by piece: leasing, naming, signing, the token.
//!
//! `cargo bench -p s3engine-benches`. Whole transfers beside their floors are measured by `s3engine bench`.
#![allow(missing_docs)] // The macros below make public items.

use std::hint::black_box;
use std::time::SystemTime;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use http::{HeaderMap, Method};
use s3engine::{Credentials, Endpoint, Memory, Pool, PoolOptions};
use s3engine_s3::range::ContentRange;
use s3engine_s3::signing::{Payload, sign_request};
use s3engine_s3::token::Token;

fn leasing(c: &mut Criterion) {
    let options = PoolOptions {
        max_bytes: Some(64 << 20),
        slab_bytes: 64 << 20,
        ..PoolOptions::default()
    };
    let pool = Pool::new(options).expect("64 MiB");
    let mut group = c.benchmark_group("lease and return");
    group.throughput(Throughput::Elements(1));
    group.bench_function("64 KiB of an empty slab", |b| {
        b.iter(|| {
            pool.try_alloc(black_box(64 << 10), Memory::Host)
                .expect("room")
        });
    });
    let _held: Vec<_> = (0..512)
        .map(|_| pool.try_alloc(64 << 10, Memory::Host).expect("room"))
        .collect();
    group.bench_function("64 KiB of a half full slab", |b| {
        b.iter(|| {
            pool.try_alloc(black_box(64 << 10), Memory::Host)
                .expect("room")
        });
    });
    group.finish();
}

fn request(c: &mut Criterion) {
    let endpoint = Endpoint::parse("http://10.0.0.5:9000").expect("a URL");
    let credentials = Credentials::new("AKIDEXAMPLE", "secret", None).expect("a pair");
    let mut group = c.benchmark_group("request");
    group.throughput(Throughput::Elements(1));
    group.bench_function("name", |b| {
        b.iter(|| {
            endpoint
                .target(
                    black_box("train"),
                    black_box("imagenet/shard 000+1.tar"),
                    &[],
                )
                .expect("a target")
        });
    });
    let target = endpoint
        .target("train", "imagenet/shard 000+1.tar", &[])
        .expect("a target");
    group.bench_function("sign", |b| {
        b.iter(|| {
            let mut headers = HeaderMap::new();
            headers.insert("range", http::HeaderValue::from_static("bytes=0-8388607"));
            let now = SystemTime::now();
            sign_request(
                &Method::GET,
                &target,
                &mut headers,
                Payload::Unsigned,
                &credentials,
                "us-east-1",
                now,
            )
            .expect("signed");
            headers
        });
    });
    group.finish();
}

fn answer(c: &mut Criterion) {
    let text = "7f0011223344aabb:deadbeef:00201fab:0012:0104d2:1:00000000000000000000ffff0f0f0fea";
    let token = Token::parse(text).expect("a token");
    let mut group = c.benchmark_group("answer");
    group.throughput(Throughput::Elements(1));
    group.bench_function("token to text", |b| b.iter(|| black_box(&token).encode()));
    group.bench_function("text to token", |b| {
        b.iter(|| Token::parse(black_box(text)))
    });
    group.bench_function("content range", |b| {
        b.iter(|| ContentRange::parse(black_box("bytes 0-8388607/1073741824")))
    });
    group.finish();
}

criterion_group!(benches, leasing, request, answer);
criterion_main!(benches);

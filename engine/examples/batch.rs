//! Fetches a batch of objects and tells of each how it came.
//!
//! ```sh
//! cargo run --release -p s3engine-cli -- sim --listen 127.0.0.1:9000 &
//! AWS_ENDPOINT_URL=http://127.0.0.1:9000 AWS_ACCESS_KEY_ID=s3sim AWS_SECRET_ACCESS_KEY=s3simsecret \
//!     cargo run --release -p s3engine --example batch -- train 8MiB-0 8MiB-1 8MiB-2 8MiB-3
//! ```

use std::error::Error;
use std::time::Duration;

use s3engine::{Credentials, Endpoint, Engine, Get, LoopbackOptions, Memory, QueueOptions, Rdma};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let bucket = arguments.next().ok_or("usage: batch BUCKET KEY...")?;

    let endpoint = Endpoint::parse(&std::env::var("AWS_ENDPOINT_URL")?)?;
    let engine = Engine::builder(endpoint)
        .credentials(Credentials::from_env()?)
        .rdma(Rdma::Loopback(LoopbackOptions::default()))
        .build()?;

    let mut queue = engine.queue(QueueOptions::default());
    for key in arguments {
        let buffer = engine.pool().try_alloc(64 << 20, Memory::Host)?;
        queue.push(Get::new(&*bucket, key).into(buffer))?;
    }
    queue.submit();
    while let Some(done) = queue.next(Duration::from_secs(60))? {
        match done.error() {
            Some(error) => println!("{error}  reason {}", done.reason()),
            None => println!(
                "{} bytes  path {}  reason {}  first byte after {:?}, done after {:?}",
                done.bytes(),
                done.path(),
                done.reason(),
                done.stages().first_byte.unwrap_or_default(),
                done.stages().done,
            ),
        }
    }
    Ok(())
}

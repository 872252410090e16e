//! The same questions to every server there is here: the simulator, and two that share no code with this project nor
//! with each other.

mod files;
mod matrix;
mod moto;
mod sim;

use s3engine::{Engine, Policy};
use s3engine_tests::{credentials, quick_builder};

/// A server with one bucket.
trait Server {
    /// What it is called.
    fn name(&self) -> &str;

    /// Where it is.
    fn url(&self) -> String;

    /// A key pair that it lets in.
    fn key_pair(&self) -> (&str, &str);

    /// Its bucket.
    fn bucket(&self) -> &str;

    /// Keeps an object of these bytes under that key.
    fn keep(&self, key: &str, bytes: &[u8]);

    /// Why it cannot keep an object under that key, or would not list it as what it is.
    fn refuses(&self, key: &str) -> Option<&'static str>;

    /// An engine over it that asks for 64 KiB at a time, by HTTP.
    fn engine_in_parts(&self) -> Engine {
        let (access_key, secret_key) = self.key_pair();
        quick_builder(&self.url())
            .credentials(credentials(access_key, secret_key))
            .part_sizes(64 << 10, 64 << 10)
            .policy(Policy::Http)
            .build()
            .unwrap()
    }
}

/// All servers that there are on this host; of the others a line says why not.
fn all() -> Vec<Box<dyn Server>> {
    let mut servers: Vec<Box<dyn Server>> =
        vec![Box::new(sim::start()), Box::new(files::Files::start())];
    match moto::Moto::start() {
        Some(moto) => servers.push(Box::new(moto)),
        None => println!("skipped: moto, which is not installed"),
    }
    servers
}

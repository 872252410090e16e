//! The simulator as one of the servers: its objects are what their names say.

use s3sim::{Sim, SimOptions};

use super::Server;
use super::matrix;

pub fn start() -> Sim {
    let names = matrix::keys().into_iter().chain(matrix::numbered());
    Sim::start(SimOptions {
        threads: 1,
        names: names.collect(),
        ..SimOptions::default()
    })
    .unwrap()
}

impl Server for Sim {
    fn name(&self) -> &str {
        "s3sim"
    }

    fn url(&self) -> String {
        self.url()
    }

    fn key_pair(&self) -> (&str, &str) {
        (self.access_key(), self.secret_key())
    }

    fn bucket(&self) -> &str {
        "bench"
    }

    fn keep(&self, _: &str, _: &[u8]) {}

    fn refuses(&self, _: &str) -> Option<&'static str> {
        None
    }
}

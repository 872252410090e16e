//! A host service in a process of its own, for tests that kill it.
//!
//! `owner SOCKET URL ACCESS_KEY SECRET_KEY FABRIC_FOLDER`: prints `serves`, and serves until it is killed or its
//! standard input ends. For each line of that it prints its metrics, and `# EOF`.

use std::io::{BufRead, Write};
use std::path::Path;

use metrics_exporter_prometheus::PrometheusBuilder;
use s3engine::Rdma;
use s3engine::service::{Caps, Service, ServiceOptions};
use s3engine_tests::{credentials, loopback, quick_builder};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, url, access, secret, folder] = &*args else {
        panic!("SOCKET URL ACCESS_KEY SECRET_KEY FABRIC_FOLDER")
    };
    let figures = PrometheusBuilder::new().set_buckets(&[0.01, 0.1]);
    let figures = figures.and_then(PrometheusBuilder::install_recorder);
    let figures = figures.expect("no other recorder");
    let engine = quick_builder(url)
        .credentials(credentials(access, secret))
        .rdma(Rdma::Loopback(loopback(Path::new(folder))))
        .build()
        .expect("the engine starts");
    let service = Service::start(ServiceOptions {
        socket: socket.into(),
        endpoints: vec![("main".to_owned(), engine)],
        allow: Vec::new(),
        rules: Vec::new(),
        client_headers: Vec::new(),
        caps: Caps {
            slab_bytes: 4 << 20,
            ..Caps::default()
        },
    });
    let service = service.expect("the service starts");
    say("serves");
    for _ in std::io::stdin().lock().lines() {
        say(&format!("{}# EOF", figures.render()));
    }
    drop(service);
}

fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().expect("somebody listens");
}

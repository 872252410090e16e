//! Servers that behave like a model: what they send stays the same, and when they send it is the model's.
//!
//! How long things take is tested without a clock beside the code. Here times are only ever said to be at
//! least so long.

mod support;

use std::time::{Duration, Instant};

use s3engine_pool::Registrar;
use s3engine_s3::fabric::loopback::{Loopback, LoopbackOptions};
use s3sim::{Action, Model, Rule, Sim, SimError, SimOptions, content};
use support::memory::{KEY, MEMORY, OBJECT, SIZE, Setup, segment, token};
use support::{Client, options};

/// A request may be so much ahead of a model's schedule.
const AHEAD: Duration = Duration::from_millis(25);
const METRICS: &str = "/minio/metrics/v3/api/rdma";

/// A model by a file.
fn model(text: &str) -> Model {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), format!("name = \"test\"\n{text}")).unwrap();
    Model::load(file.path().to_str().unwrap()).unwrap()
}

fn on(model: Model) -> SimOptions {
    SimOptions {
        model: Some(model),
        ..options()
    }
}

fn faulty(model: Model, action: Action) -> Setup {
    Setup::with(SimOptions {
        faults: vec![Rule::new(action).count(1)],
        ..on(model)
    })
}

#[test]
fn on_every_model_the_bytes_are_those_of_the_object() {
    for name in Model::names() {
        let setup = Setup::with(on(Model::load(name).unwrap()));
        assert_eq!(setup.get(&[]).status, 200, "{name}");
        setup.assert_written();
        let mut client = Client::connect(&setup.sim);
        content::verify(KEY, 0, 0, &client.get(OBJECT, &[]).body).unwrap();
        let part = client.get(OBJECT, &[("Range", "bytes=262143-1000000")]);
        content::verify(KEY, 0, 262_143, &part.body).unwrap();
        assert_eq!((part.status, part.body.len()), (206, 737_858), "{name}");
        assert_eq!(client.get("/bench/0", &[]).body.len(), 0);
        assert_eq!(client.head_of(OBJECT, &[]).status, 200);
        let counters = setup.sim.counters();
        assert_eq!(counters.rdma_read_bytes, SIZE as u64, "{name}");
    }
}

#[test]
fn files_pass_a_model_too() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("b")).unwrap();
    let file: Vec<u8> = (0..2_500_000_u32).map(|i| (i % 253) as u8).collect();
    std::fs::write(root.path().join("b/f"), &file).unwrap();
    let setup = Setup::with(SimOptions {
        root: Some(root.path().into()),
        ..on(Model::load("none").unwrap())
    });
    let mut client = Client::connect(&setup.sim);
    assert!(client.get("/b/f", &[]).body == file);
    let token = setup.token(0, MEMORY);
    let reply = client.get("/b/f", &[("x-amz-rdma-token", token.as_str())]);
    assert_eq!(reply.status, 200);
    assert!(setup.bytes()[..file.len()] == file);
}

#[test]
fn metrics_tell_the_model_and_its_line() {
    let sim = Sim::start(on(Model::load("far-gpu").unwrap())).unwrap();
    let text = Client::connect(&sim).get(METRICS, &[]);
    assert!(
        text.text()
            .contains("\ns3sim_model_info{model=\"far-gpu\"} 1\n")
    );
    let line = "\ns3sim_model_line_rate_bytes_per_second{model=\"far-gpu\"} 600000000\n";
    assert!(text.text().contains(line), "{}", text.text());
    let sim = support::sim([]);
    let text = Client::connect(&sim).get(METRICS, &[]);
    assert!(!text.text().contains("model"));
}

#[test]
fn http_and_rdma_share_one_line() {
    let setup = Setup::with(on(model("line_rate = '16MiB/s'")));
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(setup.get(&[]).status, 200));
        scope.spawn(|| Client::connect(&setup.sim).get("/bench/5MiB", &[]));
    });
    let least = Duration::from_millis(500) - AHEAD;
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    setup.assert_written();
}

#[test]
fn each_operation_takes_what_the_model_says_with_faults_too() {
    let text = "line_rate = '1GB/s'\nop_ms = 30";
    let slow_down = Action::SlowDown { retry_after: None };
    let setup = faulty(model(text), slow_down);
    let began = Instant::now();
    assert_eq!(setup.get(&[]).status, 503);
    assert_eq!(setup.get(&[]).status, 200);
    assert_eq!(Client::connect(&setup.sim).head_of(OBJECT, &[]).status, 200);
    assert!(began.elapsed() >= Duration::from_millis(88));
}

#[test]
fn faults_happen_on_models_as_they_do_without() {
    let none = || Model::load("none").unwrap();
    let setup = faulty(none(), Action::DeclineWithBody);
    let reply = setup.get(&[]);
    assert_eq!(reply.header("x-amz-rdma-reply"), Some("501"));
    content::verify(KEY, 0, 0, &reply.body).unwrap();
    setup.assert_untouched();

    let setup = faulty(none(), Action::RdmaTransferFailed);
    assert_eq!(setup.get(&[]).status, 500);
    content::verify(KEY, 0, 0, &setup.bytes()[..SIZE / 2]).unwrap();

    let trickle = Action::Trickle {
        bytes: 300_000,
        ms: 1,
    };
    let setup = faulty(none(), trickle.clone());
    assert_eq!(setup.get(&[]).status, 200);
    setup.assert_written();
    let setup = faulty(none(), trickle);
    let reply = Client::connect(&setup.sim).get(OBJECT, &[]);
    content::verify(KEY, 0, 0, &reply.body).unwrap();

    let after = Some(1_000_000);
    let setup = faulty(none(), Action::Cut { after });
    let mut client = Client::connect(&setup.sim);
    client.send("GET", OBJECT, &[]);
    client.head().unwrap();
    let (bytes, end) = client.rest();
    assert!(end.is_ok() && bytes.len() == 1_000_000);
    content::verify(KEY, 0, 0, &bytes).unwrap();

    let setup = faulty(none(), Action::Stall { after, ms: 5 });
    let reply = Client::connect(&setup.sim).get(OBJECT, &[]);
    content::verify(KEY, 0, 0, &reply.body).unwrap();
}

/// A second client of the server, which stays connected.
fn second_client(setup: &Setup) -> Loopback {
    let owner = Loopback::open(LoopbackOptions {
        folder: Some(setup.folder()),
        ..LoopbackOptions::default()
    })
    .unwrap();
    let handle = owner.register(segment(&setup.fd)).unwrap();
    let token = token(&owner, handle, MEMORY - 1, 1);
    let headers = [("x-amz-rdma-token", token.as_str())];
    let reply = Client::connect(&setup.sim).get("/bench/0", &headers);
    assert_eq!(reply.status, 204);
    owner
}

#[test]
fn a_second_client_costs_each_operation() {
    let setup = Setup::with(on(model("line_rate = '1GB/s'\nclient_ms = 40")));
    let _second = second_client(&setup);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(setup.get(&[]).status, 200));
        }
    });
    assert!(began.elapsed() >= Duration::from_millis(160) - AHEAD);
    setup.assert_written();
}

#[test]
fn writes_into_a_slab_go_at_its_rate() {
    let setup = Setup::with(on(model("line_rate = '1GB/s'\nnear_rate = '8MiB/s'")));
    let began = Instant::now();
    assert_eq!(setup.get(&[]).status, 200);
    let least = Duration::from_millis(375) - AHEAD;
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    setup.assert_written();
}

#[test]
fn a_slow_server_writes_though_the_client_has_given_up() {
    let setup = Setup::with(on(model("line_rate = '1GB/s'\nslow_ms = 50")));
    let _second = second_client(&setup);
    let token = setup.token(0, MEMORY);
    let mut client = Client::connect(&setup.sim);
    let began = Instant::now();
    client.send("GET", OBJECT, &[("x-amz-rdma-token", token.as_str())]);
    drop(client);
    setup.wait(|counters| counters.rdma_read_bytes == SIZE as u64);
    assert!(began.elapsed() >= Duration::from_millis(148));
    setup.assert_written();
}

#[test]
fn what_registrations_cost_is_told_to_clients_while_the_server_lives() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("loopback");
    let options = |rdma| SimOptions {
        loopback_folder: Some(folder.clone()),
        rdma,
        ..on(model("line_rate = '1GB/s'\nregister_ms = 30"))
    };
    let file = folder.join("registration-cost");
    let sim = Sim::start(options(true)).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "30000\n");
    let error = Sim::start(options(true)).unwrap_err();
    assert!(matches!(error, SimError::Model { .. }), "{error}");
    drop(Sim::start(options(false)).unwrap());
    assert!(file.exists());
    drop(sim);
    assert!(!file.exists());
    // A server without the feature has no clients to tell.
    let _sim = Sim::start(options(false)).unwrap();
    assert!(!file.exists());
}

//! Servers that speak TLS, and ends of it that somebody may have made.

use std::path::PathBuf;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use s3engine::{EngineBuilder, ErrorKind, Network, Policy, TlsOptions};
use s3engine_tests::{Hosted, Rig, Thing, Verb, on_both_hosts};
use s3sim::{Action, Kind, Rule, Sim, SimOptions};
use tempfile::TempDir;

use super::{always, assert_all, assert_none, assert_overcome, first, in_bodies, rig_of};

const HTTP: &[Policy] = &[Policy::Http];

/// A certificate for the simulator's address, and the file that engines trust it by.
struct Trust {
    folder: TempDir,
    certificate: String,
    key: String,
}

impl Trust {
    fn new() -> Self {
        let name = "127.0.0.1".to_owned();
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([name]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let certificate = cert.pem();
        std::fs::write(folder.path().join("ca.pem"), &certificate).unwrap();
        Self {
            folder,
            certificate,
            key: signing_key.serialize_pem(),
        }
    }

    fn bundle(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A rig whose simulator speaks TLS, and whose engine trusts it.
    fn rig(&self, rules: Vec<Rule>, truncate: bool) -> Rig {
        let tls = s3sim::TlsOptions {
            certificates: self.certificate.clone().into_bytes(),
            key: self.key.clone().into_bytes(),
            client_ca: None,
            truncate,
        };
        let options = SimOptions {
            faults: rules,
            listed: Thing::listed(),
            tls: Some(tls),
            ..SimOptions::default()
        };
        let network = Network {
            tls: TlsOptions {
                ca_bundle: Some(self.bundle()),
                ..TlsOptions::default()
            },
            ..Network::default()
        };
        rig_of(options, |builder: EngineBuilder| {
            builder.network(network.clone())
        })
    }
}

fn without_length() -> Action {
    Action::Headers {
        set: Default::default(),
        drop: vec!["content-length".to_owned()],
    }
}

#[test]
fn every_verb_goes_through_tls_and_connections_resume_their_sessions() {
    let trust = Trust::new();
    on_both_hosts(
        || trust.rig(always(&Action::Close), false),
        |host| {
            assert_all(host, &Verb::ALL, Policy::ALL);
            let counters = host.rig.sim.counters();
            let (full, resumed) = (counters.tls_full, counters.tls_resumed);
            assert!(resumed > full, "{full} sessions, {resumed} resumed");
        },
    );
}

#[test]
fn r18_an_end_of_tls_that_nobody_announced_ends_no_body() {
    let trust = Trust::new();
    let bodies = [Verb::List, Verb::Given, Verb::Piece];
    // What the length says is whole is whole, whatever comes then.
    on_both_hosts(
        || trust.rig(always(&Action::Close), true),
        |host| assert_all(host, &Verb::ALL, HTTP),
    );
    for action in [
        Action::Cut { after: Some(100) },
        Action::Cut { after: Some(0) },
    ] {
        on_both_hosts(
            || trust.rig(in_bodies(&action), true),
            |host| {
                assert_none(host, &bodies, HTTP);
                let twice = first(2, in_bodies(&action));
                assert_overcome(host, &bodies, HTTP, &twice);
            },
        );
    }
    // Without a length only the end of the session shows the end of a list.
    let rule = || vec![Rule::new(without_length()).only(Kind::List)];
    on_both_hosts(
        || trust.rig(rule(), true),
        |host| assert_none(host, &[Verb::List], HTTP),
    );
    on_both_hosts(
        || trust.rig(rule(), false),
        |host| assert_all(host, &[Verb::List], HTTP),
    );
}

#[test]
fn a_server_that_nobody_vouches_for_is_asked_nothing() {
    let (trust, other) = (Trust::new(), Trust::new());
    on_both_hosts(
        || {
            // What is trusted is read when the engine is built: then it is another's certificate.
            std::fs::copy(other.bundle(), trust.bundle()).unwrap();
            trust.rig(vec![], false)
        },
        |host: &Hosted<'_>| {
            for verb in Verb::ALL {
                let answer = verb.ask(host.engine, Policy::Http, &Thing::nth(0));
                let error = answer.expect_err("nobody vouches for it");
                assert!(!matches!(error.kind(), ErrorKind::Status { .. }), "{error}");
                let line = error.to_string().to_lowercase();
                assert!(line.contains("certificate"), "{line}");
            }
            assert_eq!(host.rig.sim.counters().requests, 0);
        },
    );
}

#[test]
fn r48_a_redirect_never_leads_out_of_tls() {
    let trust = Trust::new();
    let plain = Sim::start(SimOptions {
        anonymous: true,
        listed: Thing::listed(),
        ..SimOptions::default()
    });
    let plain = plain.unwrap();
    let to_plain = Action::Redirect {
        code: 307,
        location: Some(plain.url()),
        region: None,
    };
    on_both_hosts(
        || trust.rig(always(&to_plain), false),
        |host| assert_none(host, &Verb::ALL, HTTP),
    );
    assert_eq!(plain.counters().requests, 0);
}

//! The way to the servers, as the settings say it: TLS, several servers, proxies, where connections begin.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rcgen::{CertificateParams, KeyPair};
use s3sim::{SimOptions, TlsOptions};
use support::{Ran, World, bare, object, run};

const LEN: usize = 3 << 20;
const GET: [&str; 4] = ["get", "s3://train/3MiB-x", "-o", "x"];

/// A simulator with TLS, whose certificate is its own CA and lies in the world's folder.
fn secure() -> (World, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let world = World::with(SimOptions {
        tls: Some(TlsOptions {
            certificates: certificate.clone().into_bytes(),
            key: key.serialize_pem().into_bytes(),
            client_ca: None,
            truncate: false,
        }),
        ..SimOptions::default()
    });
    let path = world.folder.path().join("ca.pem");
    fs::write(&path, certificate).unwrap();
    (world, path.to_str().unwrap().to_owned())
}

fn arrived(world: &World, ran: Ran) {
    ran.ok();
    let found = fs::read(world.out().join("x")).unwrap();
    assert!(found == object("3MiB-x", 0, LEN));
    fs::remove_file(world.out().join("x")).unwrap();
}

/// An address where nobody listens.
fn dead() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

#[test]
fn an_object_comes_by_tls_where_its_ca_is_trusted() {
    let (world, ca) = secure();
    assert!(world.sim.url().starts_with("https://"));
    arrived(
        &world,
        world.run(&[&GET[..], &["--ca-bundle", &ca]].concat()),
    );
    arrived(&world, run(world.command(&GET).env("AWS_CA_BUNDLE", &ca)));
    let other = secure();
    let ran = world.run(&[&GET[..], &["--ca-bundle", &other.1]].concat());
    ran.fails(1, &["no TLS", "--ca-bundle", "AWS_CA_BUNDLE"]);
    let ran = world.run(&[&GET[..], &["--ca-bundle", "/nonexistent.pem"]].concat());
    ran.fails(3, &["CA file /nonexistent.pem"]);
}

#[test]
fn the_host_service_speaks_tls_for_its_clients() {
    let (world, ca) = secure();
    let file = format!(
        "[endpoint.store]\nurl = \"{}\"\nca_bundle = \"{ca}\"\n",
        world.sim.url()
    );
    let path = world.folder.path().join("service.toml");
    fs::write(&path, file).unwrap();
    let mut serve = world.serve(&["--config", path.to_str().unwrap()]);
    serve.env_remove("AWS_ENDPOINT_URL");
    let _host = support::host::Host::start(serve, world.socket());
    arrived(&world, run(&mut world.client(&GET)));
}

#[test]
fn one_of_several_servers_may_be_down() {
    let world = World::new();
    let both = format!("http://{},{}", dead(), world.sim.url());
    for _ in 0..2 {
        arrived(
            &world,
            world.run(&[&GET[..], &["--endpoint", &both]].concat()),
        );
    }
}

#[test]
fn connections_begin_where_the_settings_say() {
    let world = World::new();
    arrived(
        &world,
        world.run(&[&GET[..], &["--source", "127.0.0.9"]].concat()),
    );
    let ran = run(world.command(&GET).env("S3ENGINE_SOURCE", "192.0.2.1"));
    ran.fails(1, &["from 192.0.2.1", "no interface of this host"]);
    let ran = world.run(&[&GET[..], &["--source", "here"]].concat());
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}

#[test]
fn without_an_endpoint_the_region_names_that_of_aws_and_the_proxy_is_asked_for_it() {
    let proxy = dead();
    let mut command = bare(&GET);
    command
        .env("AWS_REGION", "eu-west-1")
        .env("S3ENGINE_ANONYMOUS", "true")
        .env("S3ENGINE_SERVICE", "off")
        .env("HTTPS_PROXY", format!("http://user:hidden@{proxy}"));
    let ran = run(&mut command);
    let proxy = format!("proxy http://{proxy}");
    ran.fails(1, &["https://s3.eu-west-1.amazonaws.com", &proxy]);
    assert!(!ran.stderr.contains("hidden"), "{}", ran.stderr);
}

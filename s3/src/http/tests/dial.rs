//! Which server a connection goes to, from where, and through what.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, listen, socket};

use super::server::Server;
use super::server::Step::Answer;
use super::server::{answer, ok};
use super::{get, landing, run, tls, whole};
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Phase};
use crate::http::Client;
use crate::http::race::Race;
use crate::network::{Network, Proxies, Source};
use crate::upstream::Upstream;

fn many(times: usize) -> Vec<super::Step> {
    (0..times).map(|_| Answer(ok(b"one"))).collect()
}

/// One endpoint of these addresses, as a client of theirs reaches it.
fn upstream_of(addresses: &[SocketAddr], network: Network) -> Arc<Upstream> {
    let urls: Vec<_> = addresses.iter().map(|at| format!("http://{at}")).collect();
    let endpoint = Endpoint::parse(&urls.join(",")).unwrap();
    let server = Server::start(Vec::new());
    Server { endpoint, ..server }.upstream(network)
}

fn address(server: &Server) -> SocketAddr {
    server.endpoint.origin().authority().parse().unwrap()
}

/// An address where nobody listens.
fn dead() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
}

/// An address that does not answer: its queue is full and stays so while the value lives.
struct Silent {
    address: SocketAddr,
    _waiting: (std::os::fd::OwnedFd, Vec<TcpStream>),
}

impl Silent {
    fn new() -> Silent {
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        listen(&listener, 0).unwrap();
        let bound = rustix::net::getsockname(&listener).unwrap();
        let address = SocketAddr::try_from(bound).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            waiting.push(stream);
            assert!(waiting.len() < 16, "its queue has no end");
        }
        Silent {
            address,
            _waiting: (listener, waiting),
        }
    }
}

#[test]
fn r32_servers_of_one_endpoint_take_turns_and_are_signed_for_by_name() {
    let servers = [Server::start(vec![many(10)]), Server::start(vec![many(10)])];
    let addresses: Vec<_> = servers.iter().map(address).collect();
    let client = Client::new(upstream_of(&addresses, Network::default()));
    run(async {
        for _ in 0..10 {
            let (_landing, mut window) = landing(16);
            assert_eq!(client.get(&whole(), &mut window).await.unwrap().bytes, 3);
        }
        assert_eq!(client.idle_connections(), 2);
    });
    for server in &servers {
        let heads: Vec<_> = (0..5).map(|_| server.next().unwrap()).collect();
        let host = format!("host: {}\r\n", address(server));
        assert!(heads.iter().all(|head| head.contains(&host)), "{heads:?}");
        assert!(server.requests.try_recv().is_err(), "more than its half");
    }
}

#[test]
fn a_server_that_refuses_is_left_alone_and_all_are_tried_where_all_refuse() {
    let server = Server::start(vec![many(9); 9]);
    let dead = dead();
    let upstream = upstream_of(&[dead, address(&server)], Network::default());
    let once = || get(&Client::new(Arc::clone(&upstream)), whole(), 16).map(|got| got.0.bytes);
    for _ in 0..6 {
        assert_eq!(once().unwrap(), 3);
    }
    assert!(!upstream.health.left(dead, Instant::now()).is_zero());
    assert!(
        upstream
            .health
            .left(address(&server), Instant::now())
            .is_zero()
    );
    // With all of them on the bench, each is tried, and the one that works is found.
    upstream.health.failed(address(&server), Instant::now());
    assert_eq!(once().unwrap(), 3);
    assert!(
        upstream
            .health
            .left(address(&server), Instant::now())
            .is_zero()
    );
    let nobody = Client::new(upstream_of(&[dead], Network::default()));
    for _ in 0..3 {
        let error = get(&nobody, whole(), 16).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Connect(_)), "{error:?}");
        assert_eq!(error.address(), Some(dead));
    }
}

#[test]
fn a_silent_address_holds_nobody_up_and_is_left_alone() {
    let silent = Silent::new();
    let server = Server::start(vec![many(9); 9]);
    let upstream = upstream_of(&[silent.address, address(&server)], Network::default());
    for _ in 0..4 {
        let client = Client::new(Arc::clone(&upstream));
        assert_eq!(get(&client, whole(), 16).unwrap().0.bytes, 3);
    }
    assert!(!upstream.health.is_clear());
    assert!(
        upstream
            .health
            .left(address(&server), Instant::now())
            .is_zero()
    );
}

#[test]
fn the_first_to_answer_wins_and_the_silent_ones_are_known() {
    let silent = Silent::new();
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let ways = vec![
        ("dead", dead()),
        ("silent", silent.address),
        ("good", server.local_addr().unwrap()),
        ("late", dead()),
    ];
    run(async {
        let mut race = Race::new(ways, Arc::default(), None);
        let first = race.next().await.unwrap();
        assert!(first.of == "dead" && first.socket.is_err());
        let second = race.next().await.unwrap();
        assert!(
            second.of == "good" && second.socket.is_ok(),
            "{}",
            second.of
        );
        assert_eq!(race.silent().collect::<Vec<_>>(), [silent.address]);
        assert_eq!(race.left(), 2);
    });
}

#[test]
fn connections_begin_where_they_are_told_to() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let from = |address: Option<&str>, interface: Option<&str>| {
        let source = Source {
            address: address.map(|ip| ip.parse().unwrap()),
            interface: interface.map(str::to_owned),
        };
        run(async {
            let mut race = Race::new(vec![((), at)], Arc::new(source), None);
            race.next().await.unwrap().socket
        })
    };
    let socket = from(Some("127.0.0.7"), None).unwrap();
    assert_eq!(
        socket.local_addr().unwrap().ip(),
        IpAddr::from([127, 0, 0, 7])
    );
    for (address, interface, words) in [
        (Some("192.0.2.1"), None, "from 192.0.2.1"),
        (Some("::1"), None, "another kind"),
        (None, Some("nosuch0"), "from interface nosuch0"),
    ] {
        let error = from(address, interface).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        // It is no fault of the server, which stays as good as it is.
        assert_eq!(error.raw_os_error(), None);
    }
    match from(None, Some("lo")) {
        Ok(_) => {}
        Err(error) => {
            assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
            eprintln!("skipped: no right to choose the interface here");
        }
    }
}

#[test]
fn a_wrong_source_is_told_and_benches_nobody() {
    let server = Server::start(vec![many(1)]);
    let network = Network {
        source: Source {
            address: Some([192, 0, 2, 1].into()),
            interface: None,
        },
        ..Network::default()
    };
    let upstream = upstream_of(&[address(&server)], network);
    let error = get(&Client::new(Arc::clone(&upstream)), whole(), 16)
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("from 192.0.2.1"), "{error}");
    assert!(upstream.health.is_clear());
}

#[test]
fn a_proxy_is_told_the_whole_url_on_every_request() {
    let proxy = Server::start(vec![many(3)]);
    let proxies = Proxies::all(&format!("http://user:hidden@{}", address(&proxy))).unwrap();
    // A name that nobody here can resolve: that is the proxy's affair.
    let endpoint = Endpoint::parse("http://s3.invalid:9000").unwrap();
    let network = Network {
        proxies,
        ..Network::default()
    };
    let server = Server::start(Vec::new());
    let client = Client::new(Server { endpoint, ..server }.upstream(network));
    run(async {
        for _ in 0..3 {
            let (_landing, mut window) = landing(16);
            assert_eq!(client.get(&whole(), &mut window).await.unwrap().bytes, 3);
            assert_eq!(client.idle_connections(), 1);
        }
    });
    for _ in 0..3 {
        let head = proxy.next().unwrap();
        assert!(
            head.starts_with("GET http://s3.invalid:9000/train/k HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(head.contains("host: s3.invalid:9000\r\n"), "{head}");
        assert!(
            head.contains("proxy-authorization: Basic dXNlcjpoaWRkZW4=\r\n"),
            "{head}"
        );
        // It is the proxy's and not the server's, so it is not signed.
        let signed = head.split("SignedHeaders=").nth(1).unwrap();
        assert!(
            !signed.split(',').next().unwrap().contains("proxy"),
            "{head}"
        );
    }
}

/// A proxy that answers each `CONNECT` so, and where that is a 200 passes on bytes to a port of this host.
fn connecting(answers: Vec<&'static str>, port: u16) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let (told, heads) = channel();
    thread::spawn(move || {
        for status in answers {
            let (client, _) = listener.accept().unwrap();
            let told = told.clone();
            thread::spawn(move || {
                let mut reader = BufReader::new(client.try_clone().unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    assert!(reader.read_line(&mut head).unwrap() > 0);
                }
                told.send(head).unwrap();
                (&client).write_all(&answer(status, &[], b"")).unwrap();
                if status.starts_with("200") {
                    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                    let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                    thread::spawn(move || pass(back.0, back.1));
                    pass(client, server);
                }
            });
        }
    });
    (at, heads)
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

#[test]
fn tls_goes_through_a_proxy_that_sees_none_of_it() {
    let authority = tls::Authority::new();
    let config = authority.server(&["s3.invalid"], false, false);
    let server = tls::Server::start(config, vec![vec![tls::Step::Answer(ok(b"one"))]]);
    let answers = vec![
        "200 OK",
        "407 Proxy Authentication Required",
        "502 Bad Gateway",
    ];
    let (at, heads) = connecting(answers, server.port);
    let endpoint = Endpoint::parse("https://s3.invalid").unwrap();
    let network = Network {
        tls: authority.trusted(),
        proxies: Proxies::all(&format!("http://user:hidden@{at}")).unwrap(),
        ..Network::default()
    };
    let other = Server::start(Vec::new());
    let upstream = Server { endpoint, ..other }.upstream(network);
    let once = || get(&Client::new(Arc::clone(&upstream)), whole(), 16).map(|got| got.0.bytes);
    assert_eq!(once().unwrap(), 3);
    let check = |error: Error, words: &str, retryable: bool| {
        assert!(error.to_string().contains(words), "{error}");
        assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
        assert_eq!(
            (error.phase(), error.is_retryable()),
            (Some(Phase::Connect), retryable)
        );
    };
    check(once().unwrap_err(), "another user and password", false);
    check(
        once().unwrap_err(),
        "does not connect to s3.invalid:443: status 502",
        true,
    );
    for _ in 0..3 {
        let head = heads.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(
            head.starts_with("CONNECT s3.invalid:443 HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(head.contains("Proxy-Authorization: Basic "), "{head}");
        assert!(!head.contains("AWS4"), "{head}");
    }
}

//! How many connections are opened at once, and what happens where the system has no file for one.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::task::JoinSet;

use super::run;
use super::server::Server;
use crate::error::{ErrorKind, Phase};
use crate::http::connection::Connection;
use crate::http::dial::ConnectError;

#[expect(clippy::result_large_err, reason = "as the client has it")]
fn failed(errno: Errno) -> Result<Connection, ConnectError> {
    let error = io::Error::from(errno);
    Err(ConnectError {
        kind: ErrorKind::Connect(error.to_string()),
        phase: Phase::Connect,
        address: None,
        source: Some(error.into()),
    })
}

#[test]
fn r30_at_most_so_many_connections_to_an_endpoint_are_opened_at_once() {
    let server = Server::start(vec![]);
    let client = server.client();
    let (now, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    run(async {
        let mut all = JoinSet::new();
        for _ in 0..200 {
            let (client, now, most) = (client.clone(), now.clone(), most.clone());
            all.spawn_local(async move {
                let open = async || {
                    now.set(now.get() + 1);
                    most.set(most.get().max(now.get()));
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    now.set(now.get() - 1);
                    failed(Errno::CONNREFUSED)
                };
                assert!(client.connect(open).await.is_err());
            });
        }
        all.join_all().await;
    });
    assert_eq!((now.get(), most.get()), (0, 64));
}

#[test]
fn r33_a_connect_without_a_file_is_tried_again_and_fails_for_other_reasons_only() {
    let server = Server::start(vec![]);
    let client = server.client();
    let tried = Cell::new(0);
    let open = async || {
        tried.set(tried.get() + 1);
        failed(match tried.get() {
            1 => Errno::MFILE,
            2 => Errno::NFILE,
            _ => Errno::CONNREFUSED,
        })
    };
    let failed = run(client.connect(open)).err().unwrap();
    assert_eq!(tried.get(), 3);
    assert!(failed.want_of_files().is_none());
}

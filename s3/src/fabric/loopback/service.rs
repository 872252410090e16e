//! The owner's thread: accepts peers of the same user, hands out descriptors, hears confirmations.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, geteuid};

use super::owner::{ACCEPT, Session, Shared, Stage, State};
use super::socket::{self, Received};
use super::wire::{Message, Refusal, WireError};

/// A peer that connected and has not said hello by then is turned away.
const GREETING: Duration = Duration::from_secs(5);

/// Pause before the next accept when descriptors or memory ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the thread does next with a session.
enum Next {
    Keep,
    /// It writes no more: forget it.
    Forget,
    /// The connection is of no more use, and nothing was said about the keys held.
    Lose,
}

/// Serves peers until the owner says stop.
pub(super) fn run(shared: &Shared, listener: &OwnedFd) {
    let mut next_id = 0;
    let mut accept_from = None;
    loop {
        let (watched, greeting) = {
            let state = shared.lock();
            (watched(&state), greeting_deadline(&state))
        };
        let accepting = accept_from.is_none_or(|from| from <= Instant::now());
        let deadline = earliest(greeting, accept_from);
        let listen_for = if accepting {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut fds = vec![
            PollFd::new(&shared.stop, PollFlags::IN),
            PollFd::new(listener, listen_for),
        ];
        fds.extend(watched.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)));
        if socket::poll(&mut fds, deadline).is_err() {
            // Out of kernel memory; nothing is lost by trying again a little later.
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        for ((id, fd), _) in watched.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
            serve(shared, *id, fd);
        }
        drop_silent(shared);
        if accepting && ready[1] {
            accept_from = accept(shared, listener, next_id).then(|| Instant::now() + ACCEPT_PAUSE);
            next_id += 1;
        } else if accepting {
            accept_from = None;
        }
    }
}

/// The descriptor that says something about each session: its socket, or its process.
fn watched(state: &State) -> Vec<(u64, Arc<OwnedFd>)> {
    let watch = |session: &Session| match &session.stage {
        Stage::Greeting { socket, .. } | Stage::Open { socket } => {
            Some((session.id, socket.clone()))
        }
        Stage::Lost => session.pidfd.clone().map(|pidfd| (session.id, pidfd)),
    };
    state.sessions.iter().filter_map(watch).collect()
}

fn greeting_deadline(state: &State) -> Option<Instant> {
    let until = |session: &Session| match session.stage {
        Stage::Greeting { until, .. } => Some(until),
        _ => None,
    };
    state.sessions.iter().filter_map(until).min()
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    [a, b].into_iter().flatten().min()
}

fn drop_silent(shared: &Shared) {
    let now = Instant::now();
    shared
        .lock()
        .sessions
        .retain(|s| !matches!(s.stage, Stage::Greeting { until, .. } if until <= now));
}

/// Accepts one connection; true if accepting should pause.
fn accept(shared: &Shared, listener: &OwnedFd, id: u64) -> bool {
    let socket = match rustix::net::accept_with(listener, ACCEPT) {
        Ok(socket) => socket,
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return false,
        Err(errno) => {
            tracing::warn!(%errno, "loopback: cannot accept a peer");
            return true;
        }
    };
    let mut state = shared.lock();
    let refusal = match rustix::net::sockopt::socket_peercred(&socket) {
        Ok(peer) if peer.uid != geteuid() => Some(Refusal::User),
        Ok(_) if state.sessions.len() >= shared.max_peers => Some(Refusal::Busy),
        Ok(peer) => {
            // Should the process have died and its number be another's by now, that one's end is awaited:
            // too long, never too short.
            let pidfd = rustix::process::pidfd_open(peer.pid, PidfdFlags::empty()).ok();
            state.sessions.push(Session {
                id,
                stage: Stage::Greeting {
                    socket: Arc::new(socket),
                    until: socket::deadline(GREETING),
                },
                pid: peer.pid.as_raw_nonzero().get(),
                pidfd: pidfd.map(Arc::new),
                held: Default::default(),
            });
            return false;
        }
        Err(_) => Some(Refusal::User),
    };
    if let Some(why) = refusal {
        let _ = socket::send(&socket, &Message::Refused { why }, None);
    }
    false
}

/// Does what a session's descriptor is ready for.
fn serve(shared: &Shared, id: u64, fd: &OwnedFd) {
    let mut state = shared.lock();
    let Some(at) = state.sessions.iter().position(|session| session.id == id) else {
        return;
    };
    let next = match state.sessions[at].stage {
        // The process is dead, and its mappings with it.
        Stage::Lost => Next::Forget,
        _ => match socket::receive(fd) {
            Ok(Received::Empty) => Next::Keep,
            Ok(Received::Message(message, _)) => answer(shared, &mut state, at, fd, message),
            Ok(Received::Malformed(error)) => malformed(fd, error),
            Ok(Received::End) | Err(_) => Next::Lose,
        },
    };
    let session = &mut state.sessions[at];
    match next {
        Next::Keep => {}
        Next::Lose if !session.held.is_empty() => session.stage = Stage::Lost,
        Next::Lose | Next::Forget => drop(state.sessions.swap_remove(at)),
    }
    shared.notify();
}

fn malformed(socket: &OwnedFd, error: WireError) -> Next {
    tracing::warn!(%error, "loopback: a peer sent something else than the protocol has");
    if matches!(error, WireError::Version { .. }) {
        let _ = socket::send(
            socket,
            &Message::Refused {
                why: Refusal::Version,
            },
            None,
        );
    }
    Next::Lose
}

fn answer(shared: &Shared, state: &mut State, at: usize, fd: &OwnedFd, message: Message) -> Next {
    let State {
        segments, sessions, ..
    } = state;
    let session = &mut sessions[at];
    match (&session.stage, message) {
        (Stage::Greeting { socket, .. }, Message::Hello { capability }) => {
            if !shared.identity.capability.matches(&capability) {
                let _ = socket::send(
                    fd,
                    &Message::Refused {
                        why: Refusal::Capability,
                    },
                    None,
                );
                return Next::Lose;
            }
            session.stage = Stage::Open {
                socket: socket.clone(),
            };
            sent(socket::send(fd, &Message::Welcome, None))
        }
        (Stage::Open { .. }, Message::Fetch { rkey }) => match segments.get(&rkey) {
            // The lock is held from here to the send: no Revoke overtakes the Segment.
            Some(segment) => {
                let message = Message::Segment {
                    rkey,
                    extent: segment.extent,
                };
                let result = socket::send(fd, &message, Some(segment.fd.as_fd()));
                if result.is_ok() {
                    session.held.insert(rkey);
                }
                sent(result)
            }
            None => sent(socket::send(fd, &Message::Unknown { rkey }, None)),
        },
        (Stage::Open { .. }, Message::Revoked { rkey }) => {
            session.held.remove(&rkey);
            Next::Keep
        }
        (Stage::Open { .. }, Message::Bye) => Next::Forget,
        _ => Next::Lose,
    }
}

/// A peer that does not read its answers is of no use.
fn sent(result: Result<(), Errno>) -> Next {
    match result {
        Ok(()) => Next::Keep,
        Err(_) => Next::Lose,
    }
}

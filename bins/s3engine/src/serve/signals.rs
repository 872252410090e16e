//! What the service hears while it runs.

use std::io;
use std::process;
use std::sync::mpsc::Sender;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// What it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// SIGTERM or SIGINT: let requests end, and end.
    End,
    /// SIGHUP: read the file again.
    Reload,
    /// SIGUSR1: tell what is under way.
    Dump,
    /// Whether nothing is under way any more.
    Drained(bool),
}

/// Tells of signals from now on. The second one that asks for the end is obeyed at once.
pub(crate) fn listen(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])?;
    let tell = move || {
        let mut asked = false;
        for signal in signals.forever() {
            let event = match signal {
                SIGHUP => Event::Reload,
                SIGUSR1 => Event::Dump,
                _ if asked => process::exit(128 + signal),
                _ => Event::End,
            };
            asked |= event == Event::End;
            // Nobody listens while it ends.
            let _ = events.send(event);
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(tell)
        .map(drop)
}

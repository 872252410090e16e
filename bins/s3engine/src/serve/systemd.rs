//! What the service manager is told, where there is one: datagrams to the socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A manager that takes nothing in is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Clients can attach.
pub(crate) fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}\n"));
}

/// The file is read again. `ready` follows, whatever it holds.
pub(crate) fn reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\n"));
}

/// Nobody can attach any more.
pub(crate) fn stopping(status: &str) {
    tell(&format!("STOPPING=1\nSTATUS={status}\n"));
}

fn tell(text: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = send(&name, text) {
        tracing::warn!(%error, socket = ?name, "the service manager cannot be told");
    }
}

fn send(name: &OsStr, text: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.send_to_addr(text.as_bytes(), &address).map(drop)
}

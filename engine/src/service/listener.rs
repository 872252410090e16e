//! The socket: one service at a time, in a folder of its own, and who comes in.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::net::UnixListener;

use super::files::OF_CLIENT;
use super::peer::Peer;
use super::{Host, ServiceError, session};

/// Connections at once beyond the sessions that there may be.
const UNKNOWN: usize = 64;

/// Held as long as the service lives. The kernel lets go of it, however the process ends.
pub(super) struct Lock(#[allow(dead_code, reason = "held, not read")] File);

/// Makes the folder, takes the lock, replaces a socket that nobody serves.
pub(super) fn bind(socket: &Path, for_others: bool) -> Result<(Lock, StdListener), ServiceError> {
    let system = |what, path: &Path| {
        let path = path.to_owned();
        move |source| ServiceError::System { what, path, source }
    };
    let folder = match socket.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    make_folder(folder).map_err(system("cannot make the folder", folder))?;
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(system("cannot open the lock", &path))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let socket = socket.to_owned();
            return Err(ServiceError::Runs { socket });
        }
        Err(errno) => return Err(system("cannot lock", &path)(errno.into())),
    }
    remove_stale(socket).map_err(system("cannot replace", socket))?;
    let listener = StdListener::bind(socket).map_err(system("cannot listen at", socket))?;
    open_to(socket, for_others)
        .and_then(|()| listener.set_nonblocking(true))
        .map_err(system("cannot listen at", socket))?;
    Ok((Lock(lock), listener))
}

/// Removes a socket that nobody serves: the lock says so. Anything else that is there stays.
fn remove_stale(socket: &Path) -> io::Result<()> {
    match fs::symlink_metadata(socket) {
        Ok(is) if is.file_type().is_socket() => fs::remove_file(socket),
        Ok(_) => {
            let why = "something that is not a socket is there";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Lets others through to the socket, or nobody but its user. Who of them may attach is decided by what the kernel
/// says of the peer, not by the file's mode alone.
pub(super) fn open_to(socket: &Path, others: bool) -> io::Result<()> {
    let mode = if others { 0o666 } else { 0o600 };
    fs::set_permissions(socket, fs::Permissions::from_mode(mode))
}

/// A folder that is this user's alone. Others only pass through it: who may attach can change while it is in use.
fn make_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o711).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let is = fs::symlink_metadata(folder)?;
    let mine = is.uid() == rustix::process::geteuid().as_raw() || is.uid() == 0;
    // In a folder that others can write to, somebody else could put a socket in the place of this one.
    let open = is.mode() & 0o022 != 0 && is.mode() & 0o1000 == 0;
    if !is.is_dir() || !mine || open {
        let why = "it is not a folder of this user that others cannot write to";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// Takes clients in until the service stops.
pub(super) async fn run(host: Arc<Host>, socket: StdListener) {
    let listener = match UnixListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot listen");
            return;
        }
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = host.stop.cancelled() => break,
        };
        match accepted {
            // More than sessions there may be: those that have not said yet who they are.
            Ok(_) if host.tasks.len() >= host.caps.sessions.saturating_add(UNKNOWN) => {}
            Ok((socket, _)) => {
                let peer = Peer::of(&socket);
                match peer {
                    Ok(peer) => {
                        let files = host.files.take(peer.uid, OF_CLIENT);
                        let session = session::run(Arc::clone(&host), socket, peer, files);
                        host.tasks.spawn_local(session);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a client that the kernel says nothing of")
                    }
                }
            }
            // Out of descriptors, most likely: others will be given back.
            Err(error) => {
                tracing::warn!(%error, "cannot take a client in");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    host.tasks.close();
    host.tasks.wait().await;
}

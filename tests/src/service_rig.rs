//! A host service over a simulator, for one test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use s3engine::service::{Caps, Service, ServiceOptions};
use s3engine::{ConnectOptions, Engine};
use tempfile::TempDir;

use crate::{Rig, wait_until};

/// A simulator, an engine over it, and a host service over that.
pub struct ServiceRig {
    /// The service. `None` while it is down.
    pub service: Option<Service>,
    /// What it serves.
    pub rig: Rig,
    folder: TempDir,
}

impl ServiceRig {
    /// With settings that suit most tests.
    pub fn new() -> Self {
        Self::with(Rig::new([]), |_| {})
    }

    /// Over another rig, with other settings too.
    pub fn with(rig: Rig, shape: impl FnOnce(&mut ServiceOptions)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut host = Self {
            service: None,
            rig,
            folder,
        };
        let mut options = host.options();
        shape(&mut options);
        host.service = Some(Service::start(options).expect("the service starts"));
        host
    }

    /// What it is started with where a test asks for nothing else.
    pub fn options(&self) -> ServiceOptions {
        ServiceOptions {
            socket: self.socket(),
            endpoints: vec![("main".to_owned(), self.rig.engine.clone())],
            allow: Vec::new(),
            rules: Vec::new(),
            client_headers: Vec::new(),
            caps: Caps {
                slab_bytes: 4 << 20,
                ..Caps::default()
            },
        }
    }

    /// Where it is found.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s3engine").join("s3engine.sock")
    }

    /// A client in this process.
    pub fn client(&self) -> Engine {
        Engine::connect(&self.socket(), ConnectOptions::default()).expect("the service is there")
    }

    /// Lets other users reach the socket, and a copy of this program, which is returned. Who of them may attach is
    /// for the service to say.
    pub fn open_to_others(&self, program: &Path) -> PathBuf {
        let copy = self.rig.folder().join("program");
        // By another process: who forks here meanwhile would hold the copy open for writing, and so not executable.
        let copied = Command::new("cp").arg(program).arg(&copy).status();
        assert!(copied.expect("cp").success(), "a copy");
        let socket = self.socket();
        for (path, mode) in [
            (&*copy, 0o755),
            (self.rig.folder(), 0o711),
            (self.folder.path(), 0o711),
            (socket.parent().expect("a folder"), 0o711),
            (&*socket, 0o666),
        ] {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(path, mode).expect("they are this user's");
        }
        copy
    }

    /// The service, which is up.
    pub fn service(&self) -> &Service {
        self.service.as_ref().expect("it is up")
    }

    /// Asserts that all clients leave, and that all memory comes back.
    pub fn assert_drains(&self) {
        wait_until("all clients have left", || {
            self.service().clients().is_empty()
        });
        self.rig.assert_drains();
    }
}

impl Default for ServiceRig {
    fn default() -> Self {
        Self::new()
    }
}
